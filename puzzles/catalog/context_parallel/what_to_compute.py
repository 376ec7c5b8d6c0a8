"""context_parallel.what_to_compute: of each block that comes around, only what the mask allows."""

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.context_parallel.answers.places import to_compute

LAYOUTS = ("contiguous", "zigzag", "striped")


class Held:
    """The positions of a rank's tokens, in order, without a list of them."""

    def __init__(self, case, rank):
        half = case.local // 2
        chunks = {
            "contiguous": (range(rank * case.local, (rank + 1) * case.local),),
            "striped": (range(rank, case.ranks * case.local, case.ranks),),
            "zigzag": tuple(range(each * half, (each + 1) * half) for each in (rank, 2 * case.ranks - 1 - rank)),
        }
        self.chunks = chunks[case.layout]
        self.tokens = case.tokens

    def __getitem__(self, index):
        first = self.chunks[0]
        return first[index] if index < len(first) else self.chunks[1][index - len(first)]

    def up_to(self, position):
        """How many of them are tokens, and not after a position."""
        ends = min(position + 1, self.tokens)
        return sum(
            len(range(chunk.start, min(chunk.stop, max(ends, chunk.start)), chunk.step)) for chunk in self.chunks
        )


def smallest(case):
    """The rectangle that is needed, by bisection over sorted positions; None where nothing is."""
    queries, keys = Held(case, case.rank), Held(case, case.owner)
    end = queries.up_to(case.tokens)
    if keys[0] >= case.tokens or not end or queries[end - 1] < keys[0]:
        return None
    return queries.up_to(keys[0] - 1), end, 0, keys.up_to(queries[end - 1])


def covers_and_no_more(case, inputs, outputs, trace):
    """It is a rectangle, nothing that is allowed is left out, and it has no more pairs than it must."""
    found, needed = outputs[0]["returns"], smallest(case)
    if found is None:
        return [Claim(needed is None, f"None leaves out pairs that are allowed: {needed} has to be computed")]
    if not (isinstance(found, list | tuple) and len(found) == 4 and all(type(each) is int for each in found)):
        return [Claim(False, "it must return None, or four whole numbers: begin and end of queries, of keys")]
    q, q_end, k, k_end = found
    pairs = max(q_end - q, 0) * max(k_end - k, 0)
    fits = 0 <= q <= q_end <= case.local and 0 <= k <= k_end <= case.local
    claims = [Claim(fits, f"{found} is no rectangle of {case.local} queries and {case.local} keys")]
    if needed is None:
        return [*claims, Claim(False, f"right, but it computes {pairs} pairs where 0 must do: nothing is allowed here")]
    area = (needed[1] - needed[0]) * (needed[3] - needed[2])
    all_there = q <= needed[0] and q_end >= needed[1] and k <= needed[2] and k_end >= needed[3]
    more = f"right, but it computes {pairs} pairs where {area} must do: {found} has rows or columns that see nothing"
    return [*claims, Claim(all_there, f"{found} leaves out pairs that are allowed: {needed} has to be computed"),
            Claim(pairs <= area, more)]  # fmt: skip


PUZZLE = Puzzle(
    name="context_parallel.what_to_compute",
    title="Skip what the mask forbids",
    statement="""
        Blocks of keys come around a ring, and a mask hides some of them. With causal attention a token sees itself and
        those before it. A kernel that is given queries and keys looks at the positions of both and hides what is to be
        hidden; but it takes the time of all pairs that it is given. So give it only the rows and columns in which
        something is allowed: a rectangle, from one query to another and from one key to another. Of some blocks that
        is all, of some it is half, and of some it is nothing.

        Each rank has L positions, in one of three layouts; L is even:

            contiguous    rank r: from r·L on, L in a row
            zigzag        rank r: L/2 in a row from r·L/2 on, then L/2 in a row from (2n-1-r)·L/2 on
            striped       rank r: r, r + n, r + 2n, ...

        The sequence may be shorter than n·L. What stands at S and after it is padding: it sees nothing and is seen by
        nothing. Queries and keys of a rank are counted from 0, in the order of their positions.

        Args:
            layout: "contiguous", "zigzag" or "striped".
            tokens: S, at least 1 and at most n·L.
            local: L.
            ranks: n.
            rank: whose queries.
            owner: whose keys.

        Returns: (first query, end of the queries, first key, end of the keys), the smallest rectangle that has all
        pairs which are allowed; None where none is allowed.

        Budget: no more pairs than that, and a formula: L may be 10^12.
        """,
    function=to_compute,
    cases=cases(worlds=(1,), layout=LAYOUTS, tokens=(16,), local=(4,), ranks=(4,), rank=(1,), owner=(3, 2, 1, 0))
    + cases(worlds=(1,), layout=LAYOUTS, tokens=(1, 7, 9, 11), local=(4,), ranks=(3,), rank=(0, 1, 2), owner=(0, 2))
    + cases(worlds=(1,), layout=LAYOUTS, tokens=(2,), local=(2,), ranks=(1,), rank=(0,), owner=(0,))
    + cases(worlds=(1,), layout=LAYOUTS, tokens=(75, 80), local=(10,), ranks=(8,), rank=(3, 7), owner=(2, 7)),
    drawn=(
        drawn(
            worlds=(1,),
            layout=LAYOUTS,
            local=(2, 4, 6, 8),
            ranks=range(2, 9),
            tokens=lambda so_far: range(1, so_far.local * so_far.ranks + 1),
            rank=lambda so_far: range(so_far.ranks),
            owner=lambda so_far: range(so_far.ranks),
        ),
    )
    * 4,
    scale=Scale(
        cases(
            worlds=(1,),
            layout=LAYOUTS,
            tokens=(8 * 10**12 - 3,),
            local=(10**12,),
            ranks=(8,),
            rank=(3,),
            owner=(2, 3, 4),
        ),
        "the number of tokens",
    ),
    judge=covers_and_no_more,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 80,
            optimum=lambda case: 12,
            why="positions of each layout are arithmetic: no list of them is needed",
        ),
    ),
    hints=(
        "Positions grow from token to token. So which queries see at least one key of the block: those from where on? "
        "And which keys are seen by at least one query: those up to where?",
        "A query sees something if it is not before the owner's first key. A key is seen if it is not after the rank's "
        "last query. Write two small functions: the position of a rank's token, and how many of a rank's tokens stand "
        "before a position.",
        "begin = tokens of the rank before the owner's first key; end = tokens of the rank before S; keys end at those "
        "of the owner before the position of query end - 1, plus 1. It is None where the owner's first key is padding, "
        "or begin >= end.",
    ),
    wrong=(
        Wrong(
            "everything is computed",
            diagnosis=r"right, but it computes \d+ pairs where \d+ must do",
            body="return 0, local, 0, local",
        ),
        Wrong(
            "blocks are skipped as if they were contiguous",
            diagnosis=r"None leaves out pairs that are allowed|leaves out pairs",
            body="return None if owner > rank else (0, local, 0, local)",
        ),
        Wrong(
            "padding is computed",
            diagnosis=r"right, but it computes \d+ pairs where \d+ must do",
            edits=(("    end = _before(layout, local, ranks, rank, tokens)\n", "    end = local\n"),),
        ),
        Wrong(
            "only keys are cut",
            diagnosis=r"right, but it computes \d+ pairs where \d+ must do",
            edits=(("return begin, end, 0,", "return 0, end, 0,"),),
        ),
        Wrong(
            "only queries are cut",
            diagnosis=r"right, but it computes \d+ pairs where \d+ must do",
            edits=(("0, _before(layout, local, ranks, owner, last_query + 1)", "0, local"),),
        ),
        Wrong(
            "a token does not see itself",
            diagnosis=r"leaves out pairs that are allowed",
            edits=(("last_query + 1)", "last_query)"),),
        ),
        Wrong(
            "the halves of zigzag are taken for each other",
            diagnosis=r"leaves out pairs that are allowed|is no rectangle",
            edits=(
                (
                    "    half = local // 2\n    return rank * half + index if",
                    "    half = local // 2\n    rank = 2 * ranks - 1 - rank\n    return rank * half + index if",
                ),
            ),
        ),
        Wrong(
            "position after position",
            diagnosis=r"right, but it runs [\d,]+ lines where 80 must do.*\n.*no list of them",
            body="""
                def positions(rank):
                    for index in range(local):
                        if layout == "contiguous":
                            yield rank * local + index
                        elif layout == "striped":
                            yield rank + ranks * index
                        else:
                            chunk = rank if index < local // 2 else 2 * ranks - 1 - rank
                            yield chunk * (local // 2) + index % (local // 2)

                first_key = next(positions(owner))
                begin = end = keys = 0
                last_query = -1
                for query in positions(rank):
                    if query < tokens:
                        end += 1
                        last_query = query
                        begin += query < first_key
                for key in positions(owner):
                    keys += key <= last_query
                return (begin, end, 0, keys) if begin < end and first_key < tokens else None
                """,
        ),
    ),
)

"""context_parallel.stripe: every n-th token, and a mask that is a triangle with or without its diagonal."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.context_parallel.answers.places import stripe


def pair_after_pair(case, inputs):
    """Positions as lists, and every pair of them; the diagonal is that of the keys that are seen."""
    queries, keys = (range(each, case.tokens, case.ranks) for each in (case.rank, case.owner))
    pairs = [(a, b) for a, query in enumerate(queries) for b, key in enumerate(keys) if key <= query]
    diagonal = max((b - a for a, b in pairs), default=0 if case.owner <= case.rank else -1)
    return [[len(queries), diagonal, len(pairs)]]


def by_rounds(case, inputs):
    """The same at scale: of n tokens in a row each rank has one, and those of the last round are the first ranks'."""
    rounds, more = divmod(case.tokens, case.ranks)
    queries = rounds + (case.rank < more)
    below = queries * (queries - 1) // 2
    return [[queries, 0, below + queries] if case.owner <= case.rank else [queries, -1, below]]


PUZZLE = Puzzle(
    name="context_parallel.stripe",
    title="Stripes",
    statement="""
        There is another way to share out the work of causal attention. Deal the tokens like cards: rank r gets tokens
        r, r + n, r + 2n, and so on. Then each rank has early tokens and late ones, and each block that comes around the
        ring has keys for nearly all of its queries.

        Between the queries of one rank and the keys of another the mask is a triangle. Count the tokens of each from 0:
        query a of the rank sees key b of the owner if b - a <= d. All that is to be found out is d, which a kernel
        takes as "causal, with the diagonal" or "causal, without it".

        Args:
            tokens: S, of the whole sequence. n need not divide it.
            ranks: n.
            rank: whose queries.
            owner: whose keys.

        Returns: three whole numbers: how many queries the rank has; d, which is 0 or -1; and how many pairs there are
        of a query of the rank and a key of the owner that it sees. A token sees itself, and all tokens before it.

        Budget: a formula, for 10^15 tokens as for 10.
        """,
    function=stripe,
    cases=cases(worlds=(1,), tokens=(12,), ranks=(4,), rank=(1,), owner=(0, 1, 2, 3))
    + cases(worlds=(1,), tokens=(11, 13, 17), ranks=(3, 5), rank=(0, 2), owner=(0, 1, 2))
    + cases(worlds=(1,), tokens=(9,), ranks=(1, 2, 8), rank=(0,), owner=(0,))
    + cases(worlds=(1,), tokens=(201,), ranks=(2,), rank=(0, 1), owner=(0, 1))
    + cases(worlds=(1,), tokens=(20, 31), ranks=(8,), rank=(0, 3, 7), owner=(0, 3, 7)),
    drawn=(
        drawn(
            worlds=(1,),
            ranks=range(2, 9),
            tokens=lambda so_far: range(2 * so_far.ranks, 90),
            rank=lambda so_far: range(so_far.ranks),
            owner=lambda so_far: range(so_far.ranks),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), tokens=(10**15 + 5,), ranks=(8, 1000), rank=(3, 7), owner=(3, 4)),
        "the number of tokens",
        oracle=by_rounds,
    ),
    oracle=pair_after_pair,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 30,
            optimum=lambda case: 3,
            why="a triangle has half as many pairs as a square, and half a diagonal more or less: no loop is needed",
        ),
    ),
    hints=(
        "Write down the positions of ranks 1 and 2 of 4: 1, 5, 9 and 2, 6, 10. Which keys does position 5 see on each "
        "of them?",
        "Query a stands at rank + n a, key b at owner + n b. When is owner + n b <= rank + n a?",
        "d is 0 where owner <= rank, else -1. `len(range(rank, tokens, ranks))` queries, q; q (q + 1) / 2 pairs, or "
        "q (q - 1) / 2.",
    ),
    wrong=(
        Wrong(
            "the diagonal is always seen",
            diagnosis=r"result\[1\]: expected -1, got 0",
            edits=(("0 if owner <= rank else -1", "0"),),
        ),
        Wrong(
            "only its own diagonal is seen",
            diagnosis=r"result\[1\]: expected 0, got -1",
            edits=(("0 if owner <= rank", "0 if owner == rank"),),
        ),
        Wrong(
            "the other way around",
            diagnosis=r"result\[1\]: expected",
            edits=(("owner <= rank", "owner >= rank"),),
        ),
        Wrong(
            "what n does not divide is lost",
            diagnosis=r"result\[0\]: expected (\d+), got \d+",
            edits=(("len(range(rank, tokens, ranks))", "tokens // ranks"),),
        ),
        Wrong(
            "what n does not divide is the last rank's",
            diagnosis=r"result\[0\]: expected (\d+), got \d+",
            edits=(
                ("len(range(rank, tokens, ranks))", "tokens // ranks + (tokens % ranks if rank == ranks - 1 else 0)"),
            ),
        ),
        Wrong(
            "a square",
            diagnosis=r"result\[2\]: expected \d+, got \d+",
            edits=(("queries * (queries + 1 + 2 * diagonal) // 2", "queries * queries"),),
        ),
        Wrong(
            "contiguous tokens: all or nothing",
            diagnosis=r"result\[2\]: expected \d+, got \d+",
            edits=(("queries * (queries + 1 + 2 * diagonal) // 2", "queries * queries * (owner <= rank)"),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"expected (\d+), got \1\.0 \(an int is asked for\)",
            edits=(("2 * diagonal) // 2", "2 * diagonal) / 2"),),
        ),
        Wrong(
            "query after query",
            diagnosis=r"right, but it runs [\d,]+ lines where 30 must do.*\n.*no loop is needed",
            body="""
                queries = pairs = 0
                for query in range(rank, tokens, ranks):
                    pairs += queries + (owner <= rank)
                    queries += 1
                return queries, 0 if owner <= rank else -1, pairs
                """,
        ),
    ),
)

"""context_parallel.best_layout: how much each rank works, and how much it fetches."""

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.context_parallel.answers.balance import best_layout

LAYOUTS = ("contiguous", "zigzag", "striped")
COUNTED = 3000  # tokens up to which the judge counts them one by one


def owner_of(layout, case, position):
    """Whose token stands there."""
    if layout == "contiguous":
        return position * case.ranks // case.tokens
    if layout == "striped":
        return position % case.ranks
    chunk = position * 2 * case.ranks // case.tokens
    return min(chunk, 2 * case.ranks - 1 - chunk)


def counted(layout, case):
    """The cost of the slowest rank: token after token, which it sees, and whose they are."""
    owners = [owner_of(layout, case, position) for position in range(case.tokens)]
    pairs, others = [0] * case.ranks, [set() for _ in range(case.ranks)]
    for position, rank in enumerate(owners):
        seen = owners[max(0, position - case.window + 1) : position + 1]
        pairs[rank] += len(seen)
        others[rank].update(seen)
    return max(pairs[rank] + case.block * len(others[rank] - {rank}) for rank in range(case.ranks))


def seen_before(position, window):
    """How many pairs all tokens before a position have: a triangle, and from the window on as many for each."""
    full = max(position - window, 0)
    rest = position - full
    return rest * (rest + 1) // 2 + full * window


def estimated(layout, case):
    """The same at scale, by runs of tokens; stripes by the tokens before the window's end, and those after it."""
    n, window, local = case.ranks, case.window, case.tokens // case.ranks
    costs = []
    for rank in range(n):
        if layout == "striped":
            grow = range(rank, min(window, case.tokens), n)
            pairs = len(grow) + (sum((grow[0], grow[-1])) * len(grow) // 2 if grow else 0)
            costs.append(pairs + (local - len(grow)) * window + case.block * (min(n, window) - 1))
            continue
        size = local if layout == "contiguous" else local // 2
        chunks = (rank,) if layout == "contiguous" else (rank, 2 * n - 1 - rank)
        pairs = sum(seen_before((each + 1) * size, window) - seen_before(each * size, window) for each in chunks)
        seen = [range(max(0, each * size - window + 1) // size, each) for each in chunks]
        others = {owner_of(layout, case, chunk * size) for each in seen for chunk in each} - {rank}
        costs.append(pairs + case.block * len(others))
    return max(costs)


def cheapest_and_its_cost(case, inputs, outputs, trace):
    """The layout is one of those that cost least, and the costs are those of the slowest ranks."""
    cost = counted if case.tokens <= COUNTED else estimated
    costs = {layout: cost(layout, case) for layout in LAYOUTS}
    found, known = outputs[0]["returns"], [costs[layout] for layout in LAYOUTS]
    pair = isinstance(found, list | tuple) and len(found) == 2 and found[0] in LAYOUTS
    if not (pair and isinstance(found[1], list | tuple) and all(type(each) is int for each in found[1])):
        return [Claim(False, 'it must return "contiguous", "zigzag" or "striped", and a list of three whole numbers')]
    layout, said = found
    all_three = ", ".join(f"{each} {costs[each]}" for each in LAYOUTS)
    return [
        Claim(costs[layout] == min(known), f"{layout} is not the best: the slowest ranks cost {all_three}"),
        Claim(list(said) == known, f"the slowest ranks cost {all_three}, not {list(said)}"),
    ]


PUZZLE = Puzzle(
    name="context_parallel.best_layout",
    title="Work of each rank, and the best layout",
    statement="""
        Ranks share out a sequence, and all wait for the one that has most to do. A token sees itself and the w - 1
        tokens before it, as far as there are some: that is causal attention with a window of w, and without a window
        where w is at least S. Each pair of a token and one that it sees costs 1. Besides, a rank has to get the keys of
        others: for each other rank of which its tokens see at least one token, it pays for that rank's block.

        Three layouts, of S tokens on n ranks, where L = S / n is even:

            contiguous    rank r: from r·L on, L in a row
            zigzag        rank r: L/2 in a row from r·L/2 on, and L/2 in a row from (2n-1-r)·L/2 on
            striped       rank r: r, r + n, r + 2n, ...

        In which one does the rank that has most to do have least?

        Args:
            tokens: S, which 2n divides.
            ranks: n.
            window: w, at least 1.
            block: the cost of another rank's block, a whole number.

        Returns: the name of that layout; and a list of three whole numbers, what the slowest rank costs in each of the
        layouts, in the order above. Where several layouts are equally good, any of them will do.

        Budget: 100 + 60 n lines, however many tokens there are.
        """,
    function=best_layout,
    cases=cases(worlds=(1,), tokens=(32,), ranks=(4,), window=(32,), block=(0, 10))
    + cases(worlds=(1,), tokens=(48,), ranks=(4,), window=(1, 2, 3, 5, 13, 30, 100), block=(0, 7, 50))
    + cases(worlds=(1,), tokens=(30,), ranks=(1, 3, 5), window=(1, 4, 11, 30), block=(3,))
    + cases(worlds=(1,), tokens=(64,), ranks=(8,), window=(2, 9, 17, 64), block=(1, 20))
    + cases(worlds=(1,), tokens=(2000,), ranks=(4,), window=(300,), block=(1000,)),
    drawn=(
        drawn(
            worlds=(1,),
            ranks=range(2, 9),
            tokens=lambda so_far: [2 * so_far.ranks * k for k in range(1, 12)],
            window=lambda so_far: range(1, so_far.tokens + 3),
            block=(0, 1, 5, 20, 100),
        ),
    )
    * 4,
    scale=Scale(
        cases(
            worlds=(1,),
            tokens=(64 * 10**10,),
            ranks=(32,),
            window=(5, 10**9 + 7, 10**12),
            block=(0, 10**15, 10**21),
        ),
        "the number of tokens",
    ),
    judge=cheapest_and_its_cost,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 100 + 60 * case.ranks,
            optimum=lambda case: 20 + 15 * case.ranks,
            why="what a run of tokens sees is a triangle and a rectangle: count them, not the tokens",
        ),
    ),
    hints=(
        "The token at position p sees min(p + 1, w) tokens. What do the tokens of one chunk see together, if all of "
        "them stand before w? And if all stand after it? And what if w lies between?",
        "Of positions first, first + stride, ... those below w see position + 1 tokens, an arithmetic series; the "
        "others see w. One function does it for chunks (stride 1) and for stripes (stride n).",
        "Blocks: a window reaches (w - 1) / L chunks back, rounded up. Contiguous: min(r, that). Zigzag, with chunks "
        "of L/2: min(r, that) + min(n - 1 - r, that), as the chunk of the tail looks back to those of higher ranks. "
        "Striped: min(n, w) - 1.",
    ),
    wrong=(
        Wrong(
            "always zigzag",
            diagnosis=r"zigzag is not the best: the slowest ranks cost contiguous \d+, zigzag \d+, striped \d+",
            edits=(("min(slowest, key=slowest.__getitem__)", '"zigzag"'),),
        ),
        Wrong(
            "by the mean of ranks, not the slowest",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(
                (
                    "max(_contiguous(tokens, ranks, window, block, rank) for rank in range(ranks))",
                    "sum(_contiguous(tokens, ranks, window, block, rank) for rank in range(ranks)) // ranks",
                ),
            ),
        ),
        Wrong(
            "the first rank stands for all",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(
                (
                    "max(_contiguous(tokens, ranks, window, block, rank) for rank in range(ranks))",
                    "_contiguous(tokens, ranks, window, block, 0)",
                ),
            ),
        ),
        Wrong(
            "the window is forgotten",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(("    slowest = {", "    window = tokens\n    slowest = {"),),
        ),
        Wrong(
            "blocks cost nothing",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(("    slowest = {", "    block = 0\n    slowest = {"),),
        ),
        Wrong(
            "every rank gets all blocks",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(
                ("others = min(rank, -(-(window - 1) // local))", "others = ranks - 1"),
                ("others = min(rank, reach) + min(ranks - 1 - rank, reach)", "others = ranks - 1"),
            ),
        ),
        Wrong(
            "a token does not see itself",
            diagnosis=r"is not the best|the slowest ranks cost contiguous \d+, .*not",
            edits=(("growing * (first + 1)", "growing * first"),),
        ),
        Wrong(
            "a number that is no int",
            diagnosis=r"a list of three whole numbers",
            edits=(("list(slowest.values())", "[each / 1 for each in slowest.values()]"),),
        ),
        Wrong(
            "token after token",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*count them, not the tokens",
            edits=(
                (
                    "    growing = min(max((window - 1 - first) // stride + 1, 0), count)\n",
                    "    total = 0\n"
                    "    for token in range(count):\n"
                    "        total += min(first + stride * token + 1, window)\n"
                    "    return total\n"
                    "    growing = min(max((window - 1 - first) // stride + 1, 0), count)\n",
                ),
            ),
        ),
    ),
)

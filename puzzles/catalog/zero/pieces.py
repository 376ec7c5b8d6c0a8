"""zero.pieces: where the cuts go when n ranks share tensors that n does not divide."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.zero.answers.on_shards import pieces_of

SMALL = ((5, 6), (1, 1, 1), (3, 0, 9, 4), (2,))


def element_by_element(case, inputs):
    """Go through all elements, and ask of each which rank it belongs to."""
    places = [(index, element) for index, size in enumerate(case.sizes) for element in range(size)]
    shard = -(-len(places) // case.ranks)
    mine = places[case.rank * shard : (case.rank + 1) * shard]
    held: dict[int, list[int]] = {}
    for index, element in mine:
        held.setdefault(index, []).append(element)
    return [[(index, elements[0], elements[-1] + 1) for index, elements in held.items()]]


def overlaps(case, inputs):
    """The same, where there are too many elements to go through: of each parameter, what lies in the shard."""
    shard = -(-sum(case.sizes) // case.ranks)
    low, found, begin = case.rank * shard, [], 0
    for index, size in enumerate(case.sizes):
        first, last = (min(max(edge - begin, 0), size) for edge in (low, low + shard))
        if first < last:
            found.append((index, first, last))
        begin += size
    return [found]


PUZZLE = Puzzle(
    name="zero.pieces",
    title="The pieces of parameters in a shard",
    statement="""
        Lay all parameters one after another in one flat row. Pad the row to a multiple of the number of ranks, and cut
        it into shards of equal length: rank r holds shard r. The cuts take no notice of where a parameter ends, so a
        shard may hold the end of one, the whole of others, and the beginning of the next; the last ones may hold
        nothing but padding.

            5 and 6 elements, 3 ranks     |a a a a|a b b b|b b b .|     rank 1 holds (0, 4, 5) and (1, 0, 3)

        Args:
            sizes: elements of each parameter, in order.
            rank: whose shard.
            ranks: how many ranks.

        Returns: for each parameter of which the shard holds anything, in order: (its index, begin, end), where the
        shard holds elements [begin, end) of it.

        Budget: a few lines for each parameter, however large it is.
        """,
    function=pieces_of,
    answer="""
        shard = -(-sum(sizes) // ranks)
        first, last = rank * shard, (rank + 1) * shard
        found, start = [], 0
        for index, size in enumerate(sizes):
            begin, end = max(start, first), min(start + size, last)
            if begin < end:
                found.append((index, begin - start, end - start))
            start += size
        return found
        """,
    cases=cases(worlds=(1,), sizes=((5, 6),), rank=(1, 0, 2), ranks=(3,))
    + cases(worlds=(1,), sizes=SMALL[1:], rank=(0, 1), ranks=(2, 4))
    + cases(worlds=(1,), sizes=SMALL, rank=(4,), ranks=(5,))
    + cases(worlds=(1,), sizes=(*SMALL[:1], (3000, 1, 5000)), rank=(0,), ranks=(1, 7)),
    drawn=(
        drawn(
            worlds=(1,),
            sizes=((4, 9, 1), (7,), (2, 2, 11, 5, 3), (100, 1, 64)),
            ranks=range(1, 10),
            rank=lambda so_far: range(so_far.ranks),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), sizes=((10**12, 1, 5 * 10**12, 7),), rank=(0, 3, 6), ranks=(7,)),
        "the number of elements",
        oracle=overlaps,
    ),
    oracle=element_by_element,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 * len(case.sizes) + 20,
            optimum=lambda case: 4 * len(case.sizes) + 4,
            why="where two stretches overlap, max and min say; there is no need to go through 7 billion elements",
        ),
    ),
    hints=(
        "How long is a shard, and where in the flat row does shard r begin and end? Where does parameter i begin?",
        "Two stretches [a, b) and [c, d) have [max(a, c), min(b, d)) in common, if that is a stretch at all.",
        "Go through the sizes with `start`, where this parameter begins in the row. What is found there lies at "
        "`begin - start` within the parameter.",
    ),
    wrong=(
        Wrong(
            "the row is cut before it is padded",
            diagnosis=r"pieces_of\(.*\): result\[0\]|expected -?[\d.]+ values, got|expected \d, got",
            edits=(("-(-sum(sizes) // ranks)", "sum(sizes) // ranks"),),
        ),
        Wrong(
            "each parameter is cut by itself",
            diagnosis=r"expected",
            body="""
                found = []
                for index, size in enumerate(sizes):
                    shard = -(-size // ranks)
                    begin, end = rank * shard, min((rank + 1) * shard, size)
                    if begin < end:
                        found.append((index, begin, end))
                return found
                """,
        ),
        Wrong(
            "places in the row, not in the parameter",
            diagnosis=r"expected 0, got 5|expected",
            edits=(("(index, begin - start, end - start)", "(index, begin, end)"),),
        ),
        Wrong(
            "what it holds nothing of is listed, too",
            diagnosis=r"expected -?[\d.]+ values, got -?[\d.]+ values",
            edits=(("if begin < end:", "if begin <= end:"),),
        ),
        Wrong(
            "element by element",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*there is no need to go through",
            body="""
                shard = -(-sum(sizes) // ranks)
                found, at = [], 0
                for index, size in enumerate(sizes):
                    mine = []
                    for element in range(size):
                        if at // shard == rank:
                            mine.append(element)
                        at += 1
                    if mine:
                        found.append((index, mine[0], mine[-1] + 1))
                return found
                """,
        ),
    ),
)

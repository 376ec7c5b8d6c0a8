"""context_parallel.documents_by_work: equal numbers of tokens are not equal work."""

import random

from torch import Tensor

from puzzles.grading.drives.context_heads import as_numbers
from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.context_parallel.answers.share import share_documents

FEW = 9  # documents of which all shares can be looked at
ONE_LONG = (40, *[10] * 16)
MORE_SHORT = (40, *[10] * 40)  # its short ones are more work than the long one: some belong beside it
LONG_LAST = (10, 10, 10, 10, 20)
CHANCE = random.Random(31)
OTHERS = [tuple(CHANCE.randrange(1, 60) for _ in range(CHANCE.randrange(3, FEW + 1))) for _ in range(60)]
MANY = 200_000


def lengths_of(case):
    """As the case says, or so many drawn by its seed."""
    if isinstance(case.documents, tuple):
        return list(case.documents)
    chance = random.Random(case.seed)
    return [chance.randrange(1, 10_000) for _ in range(case.documents)]


def least_work(lengths, ranks):
    """What the rank with most work must have: by looking at all shares, or of many documents no more than must be."""
    works = sorted((length**2 for length in lengths), reverse=True)
    least = max(-(-sum(works) // ranks), works[0])
    if len(works) > FEW:
        return least
    best = sum(works)

    def fill(at, loads):
        nonlocal best
        if at == len(works):
            best = min(best, max(loads))
            return
        for load in {*loads}:
            if load + works[at] < best:
                place = loads.index(load)
                fill(at + 1, (*loads[:place], load + works[at], *loads[place + 1 :]))

    fill(0, (0,) * ranks)
    return best


def nearly_the_least(case, inputs, outputs, trace):
    """Each document has a rank, and no rank has more work than Graham's bound says."""
    found, lengths, n = outputs[0]["returns"], lengths_of(case), case.ranks
    if not isinstance(found, Tensor):
        return [Claim(False, "it must return a list with a whole number for each document: the rank that gets it")]
    found = found.tolist()
    inside = all(0 <= rank < n for rank in found)
    if len(found) != len(lengths) or not inside:
        fact = f"{len(found)} ranks for {len(lengths)} documents"
        return [
            Claim(False, fact if inside else f"ranks are 0 to {n - 1}, and here is one of {min(found)}, {max(found)}")
        ]
    works = [0] * n
    for rank, length in zip(found, lengths, strict=True):
        works[rank] += length**2
    most, best = max(works), least_work(lengths, n)
    allowed = (4 * n - 1) * best // (3 * n)
    told = f"ranks do {works} of work" if n <= FEW else "a rank does too much work"
    return [Claim(most <= allowed, f"{told}: {most} at most, where {best} is possible and {allowed} would pass")]


PUZZLE = Puzzle(
    name="context_parallel.documents_by_work",
    title="Documents by work",
    statement="""
        Texts of many lengths fill a batch, and no token looks at another document. Whole documents are shared out to
        ranks. Give each the same number of tokens, and one rank will have a long text and another many short ones. But
        attention compares each token with all of its document: a text of 40 tokens is as much work as sixteen of 10,
        which have four times as many tokens. All ranks wait for the one that has most work.

        Share out the documents so that the rank with most work, the sum of the squares of its documents' lengths, has
        little more than it must. No quick way to the best share is known. It is easy to be close: with n
        ranks, 4/3 - 1/(3n) times the best is what passes, for any lengths.

        Args:
            lengths: of the documents, in tokens, each at least 1, in any order.
            ranks: n, at least 1. There may be more of them than documents.

        Returns: for each document the rank that gets it, 0 to n - 1. Where several shares are good, any will do.

        Budget: 200,000 documents for 4,000 ranks in two seconds of processor time; 100 + 10 for each document and each
        rank are the lines that it may run.
        """,
    function=share_documents,
    cases=cases(worlds=(1,), documents=(ONE_LONG,), ranks=(2, 4, 1))
    + cases(worlds=(1,), documents=(LONG_LAST,), ranks=(2, 3))
    + cases(worlds=(1,), documents=(MORE_SHORT,), ranks=(2,))
    + cases(worlds=(1,), documents=((30, *[10] * 18),), ranks=(3,))
    + cases(worlds=(1,), documents=((30, 1, 30, 1),), ranks=(2,))
    + cases(worlds=(1,), documents=((7, 7, 6, 6, 5, 5, 4),), ranks=(3, 8))
    + cases(worlds=(1,), documents=((9,),), ranks=(1, 5)),
    drawn=(drawn(worlds=(1,), documents=OTHERS, ranks=range(1, 7)), drawn(worlds=(1,), documents=OTHERS, ranks=(2, 3))),
    scale=Scale(cases(worlds=(1,), documents=(MANY,), ranks=(4_000,)), "the number of documents times that of ranks"),
    inputs=lambda case, rank: {"lengths": lengths_of(case), "ranks": case.ranks},
    judge=nearly_the_least,
    drive=as_numbers,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 100 + 10 * (len(lengths_of(case)) + case.ranks),
            optimum=lambda case: 5 + 5 * len(lengths_of(case)),
            why="look at each document once: no need to try shares",
        ),
    ),
    hints=(
        "Two ranks, documents of 10, 10, 10, 10 and 20 tokens. What is the best share? Which document must you place "
        "first to find it?",
        "Short documents fill gaps, long ones make them. So place the longest first, each on the rank that has least "
        "work so far.",
        "Which rank has least work? To look at all of them for each document takes too long where there are thousands: "
        "`heapq` keeps the smallest of (work, rank) in front. `heapq.heapreplace(least, (work + length**2, rank))`.",
    ),
    wrong=(
        Wrong(
            "by tokens",
            diagnosis=r"ranks do \[2200, 1000\] of work: 2200 at most, where 1600 is possible and 1866 would pass",
            edits=(("work + lengths[document] ** 2", "work + lengths[document]"),),
        ),
        Wrong(
            "by the third power of their lengths",
            diagnosis=r"ranks do \[1600, 4000\] of work: 4000 at most, where 2800 is possible and 3266 would pass",
            edits=(("lengths[document] ** 2", "lengths[document] ** 3"),),
        ),
        Wrong(
            "in the order in which they come",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            edits=(("sorted(range(len(lengths)), key=lambda document: -lengths[document])", "range(len(lengths))"),),
        ),
        Wrong(
            "the shortest first",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            edits=(("key=lambda document: -lengths", "key=lambda document: lengths"),),
        ),
        Wrong(
            "dealt out in turn",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            body="return [document % ranks for document in range(len(lengths))]",
        ),
        Wrong(
            "longest first, there and back: as many documents for each",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            body="""
                owners = [0] * len(lengths)
                for place, document in enumerate(sorted(range(len(lengths)), key=lambda each: -lengths[each])):
                    turn, at = divmod(place, ranks)
                    owners[document] = ranks - 1 - at if turn % 2 else at
                return owners
                """,
        ),
        Wrong(
            "cut where the work of a rank is full",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            body="""
                owners, done, full = [], 0, sum(length**2 for length in lengths) / ranks
                for length in lengths:
                    owners.append(min(ranks - 1, int(done / full)))
                    done += length**2
                return owners
                """,
        ),
        Wrong(
            "the ranks of the documents in order of their length",
            diagnosis=r"ranks do \[.*\] of work: \d+ at most, where \d+ is possible",
            edits=(
                ("owners = [0] * len(lengths)", "owners = []"),
                ("owners[document] = rank", "owners.append(rank)"),
            ),
        ),
        Wrong(
            "documents for each rank, and not a rank for each document",
            diagnosis=r"it must return a list with a whole number for each document",
            edits=(
                (
                    "return owners",
                    "return [[each for each, owner in enumerate(owners) if owner == rank] for rank in range(ranks)]",
                ),
            ),
        ),
        Wrong(
            "all ranks are looked at for each document",
            diagnosis=r"right, but it takes more than 2 s of processor time",
            body="""
                owners, works = [0] * len(lengths), [0] * ranks
                for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
                    rank = works.index(min(works))
                    owners[document] = rank
                    works[rank] += lengths[document] ** 2
                return owners
                """,
        ),
        Wrong(
            "documents change places for as long as it helps",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*no need to try shares",
            body="""
                order = sorted(range(len(lengths)), key=lambda document: -lengths[document])
                owners, works = [0] * len(lengths), [0] * ranks
                for document in order:
                    rank = 0
                    for other in range(ranks):
                        if works[other] < works[rank]:
                            rank = other
                    owners[document] = rank
                    works[rank] += lengths[document] ** 2
                for one in order:
                    for other in order:
                        a, b = owners[one], owners[other]
                        if a != b:
                            more = lengths[one] ** 2 - lengths[other] ** 2
                            if max(works[a] - more, works[b] + more) < max(works[a], works[b]):
                                owners[one], owners[other] = b, a
                                works[a], works[b] = works[a] - more, works[b] + more
                return owners
                """,
        ),
    ),
)

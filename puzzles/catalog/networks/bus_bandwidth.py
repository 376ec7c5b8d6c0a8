"""networks.bus_bandwidth: how fast was the hardware, whatever the number of ranks?"""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.answers.bandwidth import bus_bandwidth


def through_one_link(case, inputs):
    """The bytes that pass the link from rank 0 to rank 1 of a ring, chunk by chunk, over the time."""
    passed = sum(case.size / case.ranks for half in range(2) for _ in range(case.ranks - 1))
    return [passed / case.seconds]


def all_chunks_alike(case, inputs):
    """The same, where there are too many chunks to count."""
    return [2 * (case.ranks - 1) / case.ranks * case.size / case.seconds]


PUZZLE = Puzzle(
    name="networks.bus_bandwidth",
    title="Bus bandwidth from a time",
    statement="""
        An all-reduce of `size` bytes took `seconds` on n ranks. Size over time is what nccl-tests calls algorithm
        bandwidth. It says how fast one is served, and it falls as ranks are added, even where every link is as busy as
        before: most of what a link carries is there because of the others.

        Bus bandwidth says how fast the links are. It is the number of bytes that each link of a ring must carry, over
        the time. Compared with what the hardware is sold as, it tells how much of it you got, on any number of ranks.

        Args:
            ranks: n, at least 1. With n = 1 nothing is sent.
            size: bytes of the tensor that each rank brings.
            seconds: from the first rank's call to the last one's return.

        Returns: bytes per second.

        Budget: a formula.
        """,
    function=bus_bandwidth,
    cases=cases(worlds=(1,), ranks=(8, 4, 2, 3, 1, 512), size=(1e9, 4e6), seconds=(5e-3, 40e-3)),
    drawn=(drawn(worlds=(1,), ranks=range(2, 3000), size=magnitudes(3, 10), seconds=magnitudes(-4, 1)),),
    scale=Scale(
        cases(worlds=(1,), ranks=(10**12,), size=(1e9,), seconds=(5e-3,)),
        "the number of ranks",
        oracle=all_chunks_alike,
    ),
    oracle=through_one_link,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 8,
            optimum=lambda case: 1,
            why="every link carries 2(n-1) chunks of one n-th: no need to count them",
        ),
    ),
    hints=(
        "How many chunks leave rank 0 in a ring all-reduce, and how large is each?",
        "The two bandwidths differ by the factor 2(n-1)/n: the share of the tensor that passes each link.",
    ),
    wrong=(
        Wrong("algorithm bandwidth", r"expected 3\.5e\+11, got 2e\+11", body="return size / seconds"),
        Wrong("an all-gather's factor", r"off by a factor of 0\.5", edits=(("2 * (ranks - 1)", "(ranks - 1)"),)),
        Wrong(
            "the factor upside down",
            r"expected 3\.5e\+11, got 1\.14",
            edits=(("2 * (ranks - 1) / ranks * size", "size * ranks / (2 * (ranks - 1))"),),
        ),
        Wrong("bits", r"off by a factor of 8", edits=(("return 2 *", "return 8 * 2 *"),)),
        Wrong(
            "all links together",
            r"ranks=8, .*expected 3\.5e\+11, got 2\.8e\+12",
            edits=(("(ranks - 1) / ranks", "(ranks - 1)"),),
        ),
        Wrong(
            "counting chunks",
            diagnosis=r"right, but it runs [\d,]+ lines where 8 must do.*\n.*no need to count",
            body="""
                passed = 0.0
                for _ in range(2 * (ranks - 1)):
                    passed += size / ranks
                return passed / seconds
                """,
        ),
        Wrong(
            "always the same time",
            diagnosis=r"seconds=0\.04\): expected 4\.375e\+10, got 3\.5e\+11",
            edits=(("/ seconds", "/ 5e-3"),),
        ),
    ),
)

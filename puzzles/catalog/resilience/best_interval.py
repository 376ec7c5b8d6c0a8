"""resilience.best_interval: saves behind training and copies in memory, each as often as its own failures ask for."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.resilience.answers.two_levels import best_intervals

LLAMA3 = 1.82e8 / 16_384  # seconds between failures of 16,384 GPUs (arXiv:2407.21783, sec. 3.3.4)

SEARCH = """
    def least(stop, failures):
        low, high = 1e-9, 1e18
        for _ in range(300):
            middle = (low * high) ** 0.5
            if stop / middle**2 > failures / 2:
                low = middle
            else:
                high = middle
        return low

    copies = least(copy, survived / between)
    saves = max(least(stall, (1 - survived) / between), write)
    redone = survived * copies / 2 + (1 - survived) * (saves / 2 + write)
    return copies, saves, copy / copies + stall / saves + (redone + down) / between
    """


def where_it_stops_to_gain(case, inputs):
    """Each interval by halving: where a second more costs as much in work that is redone as it saves in stops."""

    def least(stop, failures, from_):
        low, high = from_, 1e18
        for _ in range(400):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if stop / middle**2 > failures / 2 else (low, middle)
        return low

    memory, disk = case.survived / case.between, (1 - case.survived) / case.between  # failures in a second
    copies, saves = least(case.copy, memory, 1e-9), least(case.stall, disk, case.write)
    stops = case.copy / copies + case.stall / saves
    # a save counts when it is written: a failure before that goes back to the one before
    unwritten = case.write / saves
    redone = (1 - unwritten) * (case.write + saves) / 2 + unwritten * (case.write / 2 + saves)
    return [(copies, saves, stops + memory * copies / 2 + disk * redone + case.down / case.between)]


PUZZLE = Puzzle(
    name="resilience.best_interval",
    title="How often to copy, and how often to save",
    statement="""
        A training keeps its state in two places. From time to time it sends a copy to the memory of other nodes, for
        which it stops `copy` seconds; then the copy counts. And from time to time it saves to a disk: it stops `stall`
        seconds for a snapshot, which is written while training continues, and counts when it is written, `write`
        seconds after the stop. The next save cannot begin before that.

        Failures come once in `between` seconds in the mean, at any time. After a part `survived` of them a copy in
        memory is left, and training goes back to the last one. After the others all copies are gone, and it goes back
        to the last save that counts. Then `down` seconds pass until it resumes. How often should it copy, and how often
        save?

        Count as on an envelope: the seconds that are lost for each second of training. Let stops be short beside
        intervals, and let no failure come while training stops or is down. Copies do not help where saves are needed,
        and saves are too old where copies are left, so the two can be chosen one by one.

        Args:
            between: M, mean time between failures of all GPUs, in seconds.
            survived: the part of failures that a copy in memory survives, above 0 and below 1.
            copy: seconds for which training stops for a copy.
            stall: seconds for which it stops for a save.
            write: seconds from then until the save counts.
            down: seconds from a failure until training resumes.

        Returns: seconds between two copies, seconds between two saves, and the seconds lost for each second of training
        at these.

        Budget: a formula.
        """,
    function=best_intervals,
    cases=cases(
        worlds=(1,),
        between=(LLAMA3,),
        survived=(0.99, 0.5),
        copy=(0.1,),
        stall=(5.0,),
        write=(120.0, 3000.0),
        down=(600.0, 0.0),
    )
    + cases(worlds=(1,), between=(1400.0,), survived=(0.9,), copy=(0.5,), stall=(2.0,), write=(600.0,), down=(60.0,)),
    drawn=(
        drawn(
            worlds=(1,),
            between=magnitudes(3, 5),
            survived=(0.2, 0.7, 0.93, 0.98),
            copy=magnitudes(-2, 0),
            stall=magnitudes(0, 1),
            write=magnitudes(1, 3),
            down=magnitudes(1, 3),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), between=(1e15,), survived=(0.9,), copy=(0.1,), stall=(5.0,), write=(60.0,), down=(600.0,)),
        "the seconds between failures",
    ),
    oracle=where_it_stops_to_gain,
    tolerance=1e-6,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 15,
            optimum=lambda case: 4,
            why="each interval is a square root of its own, as with a single kind of checkpoint",
        ),
    ),
    hints=(
        "Write down what is lost for each second of training, in three parts: stops for copies, stops for saves, and "
        "for each kind of failure what has to be done again. Which terms have the interval of saves in them?",
        "For a single kind, stop/τ + τ/2M is least at τ = sqrt(2 · stop · M). Here copies have failures of their own, "
        "one in M / survived seconds, and saves have the others.",
        "When a failure comes, the last save that counts is τ/2 + write old in the mean. `write` does not depend on τ: "
        "it is no part of the square root. But no interval is shorter than it.",
        "sqrt(2 copy M / survived), and the larger of write and sqrt(2 stall M / (1 - survived)).",
    ),
    wrong=(
        Wrong(
            "saves for all failures",
            diagnosis=r"expected [\d.]+, got 333",
            edits=(("between / (1 - survived)), write)", "between), write)"),),
        ),
        Wrong(
            "training stops until the save is written",
            diagnosis=r"expected 3332\.9\d*, got 16664",
            edits=(
                ("sqrt(2 * stall * between / (1 - survived))", "sqrt(2 * (stall + write) * between / (1 - survived))"),
            ),
        ),
        Wrong(
            "the next save begins before the last one is written",
            diagnosis=r"write=3000.*expected|expected 3000",
            edits=(
                (
                    "max(sqrt(2 * stall * between / (1 - survived)), write)",
                    "sqrt(2 * stall * between / (1 - survived))",
                ),
            ),
        ),
        Wrong(
            "a save counts when it begins",
            diagnosis=r"expected 0\.\d+, got 0\.\d+",
            edits=(("(saves / 2 + write)", "saves / 2"),),
        ),
        Wrong(
            "the parts exchanged",
            diagnosis=r"expected [\d.]+, got",
            edits=(
                ("2 * copy * between / survived", "2 * copy * between / (1 - survived)"),
                ("between / (1 - survived)), write)", "between / survived), write)"),
            ),
        ),
        Wrong(
            "every failure goes back to the disk",
            diagnosis=r"expected 0\.\d+, got 0\.\d+",
            edits=(("survived * copies / 2 + (1 - survived) * (saves / 2 + write)", "saves / 2 + write"),),
        ),
        Wrong("a search", diagnosis=r"right, but it runs [\d,]+ lines where 15 must do.*\n.*square root", body=SEARCH),
    ),
)

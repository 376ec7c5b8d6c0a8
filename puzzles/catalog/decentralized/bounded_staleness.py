"""decentralized.bounded_staleness: how long workers wait for the slowest, and never for one that has ended."""

import random

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, case, cases, drawn
from reference.decentralized.answers.bounded import finish_times


def a_plan(case, rank):
    """Workers with steps of unequal length, and not equally many of them."""
    chance = random.Random(case.seed)
    counts = [case.steps if case.even else chance.randint(0, case.steps) for _ in range(case.workers)]
    slow = [chance.choice((1, 1, 4)) for _ in counts]
    seconds = [[chance.randint(1, 9) * by for _ in range(count)] for count, by in zip(counts, slow, strict=True)]
    seconds[0] = seconds[0] or [3]
    return {"seconds": seconds, "bound": case.bound}


def event_by_event(case, inputs):
    """A simulation: at each moment, those that may take a step begin it."""
    seconds, bound = inputs[0]["seconds"], case.bound
    taken, busy_until, now = [0] * len(seconds), [None] * len(seconds), 0
    ends = [0] * len(seconds)
    while any(count < len(own) for count, own in zip(taken, seconds, strict=True)):
        working = [count for count, own in zip(taken, seconds, strict=True) if count < len(own)]
        for worker, own in enumerate(seconds):
            if busy_until[worker] is None and taken[worker] < len(own) and taken[worker] - min(working) <= bound:
                busy_until[worker] = now + own[taken[worker]]
        now = min(until for until in busy_until if until is not None)
        for worker, until in enumerate(busy_until):
            if until == now:
                taken[worker], busy_until[worker], ends[worker] = taken[worker] + 1, None, now
    return [ends]


def step_by_step(case, inputs):
    """One may begin a step when the slowest has ended its; one without further steps is no slower than its last."""
    seconds, bound = inputs[0]["seconds"], case.bound
    last, slowest = [0] * len(seconds), [0]
    for step in range(max(map(len, seconds))):
        gate = slowest[max(0, step - bound)]
        for worker, own in enumerate(seconds):
            if step < len(own):
                last[worker] = max(gate, last[worker]) + own[step]
        slowest.append(max(last))
    return [last]


FREE = "        free = max(of_worker[min(needed, len(of_worker) - 1)] for of_worker in ends)\n"

PUZZLE = Puzzle(
    name="decentralized.bounded_staleness",
    title="Not too far ahead, and no deadlock",
    statement="""
        Stale-synchronous training: no worker waits for others at each step, as in synchronous training, and none runs
        away from them, as in asynchronous training. A worker may begin a step if it has taken at most `bound` steps
        more than each worker that still works. With bound 0 all take their steps together.

        A worker that has taken all of its steps has ended, and holds up none of the others: else those that have more
        to do would wait for it and never end. Until then it counts like all others. Messages take no time.

        Args:
            seconds: of each worker, how long each of its steps takes; some have more steps than others, some none. One
                at least has a step.
            bound: 0 or more.

        Returns: when each worker has ended, from a common start at 0; 0 for one without a step.

        Budget: a look at each worker and step.
        """,
    function=finish_times,
    cases=cases(worlds=(1,), workers=(3,), steps=(5,), bound=(1, 0, 2, 9), even=(True, False))
    + cases(worlds=(1,), workers=(1, 2, 6), steps=(7,), bound=(1, 3), even=(False,))
    + cases(worlds=(1,), workers=(14,), steps=(6,), bound=(0, 2), even=(True,)),
    drawn=(drawn(worlds=(1,), workers=range(2, 9), steps=range(3, 12), bound=(0, 1, 2, 4), even=(False, True)),),
    scale=Scale(
        (case(1, workers=8000, steps=3, bound=1, even=True),),
        "the square of the number of workers",
        oracle=step_by_step,
    ),
    inputs=a_plan,
    oracle=event_by_event,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + 8 * case.workers * (case.steps + 1),
            optimum=lambda case: 4 + 3 * case.workers * case.steps,
            why="how far the slowest is does not depend on who asks: find it once for each step",
        ),
    ),
    hints=(
        "Before a worker begins its step k, counted from 0, it has taken k. How many must each of the others have "
        "taken, if it still works? When had it?",
        "Keep for each worker when it has taken 0, 1, 2, ... steps. For step k look at entry k - bound of all of them, "
        "or 0 if that is less; of a worker that has fewer steps, at its last entry.",
        "`free = max(of_worker[min(needed, len(of_worker) - 1)] for of_worker in ends)`, once for each k; a step ends "
        "at `max(free, own last end) + seconds`.",
    ),
    wrong=(
        Wrong(
            "one that has ended counts forever",
            diagnosis=r"IndexError|expected",
            edits=(("of_worker[min(needed, len(of_worker) - 1)]", "of_worker[needed]"),),
        ),
        Wrong(
            "one step less",
            diagnosis=r"expected",
            edits=(("step - bound)", "step - bound + 1)"), ("min(needed,", "min(needed, step,")),
        ),
        Wrong(
            "one step more",
            diagnosis=r"expected",
            edits=(("step - bound)", "step - bound - 1)"),),
        ),
        Wrong(
            "no bound",
            diagnosis=r"expected",
            edits=(("max(free, of_worker[-1])", "of_worker[-1]"),),
        ),
        Wrong(
            "waits for the fastest",
            diagnosis=r"expected",
            edits=((FREE, FREE.replace("max(", "min(", 1)),),
        ),
        Wrong(
            "each worker looks at all others",
            diagnosis=r"right, but it (runs [\d,]+ lines where|takes more than)",
            edits=(
                (FREE, ""),
                (
                    "            if step < len(own):\n",
                    "            if step < len(own):\n"
                    "                free = 0\n"
                    "                for other in ends:\n"
                    "                    free = max(free, other[min(needed, len(other) - 1)])\n",
                ),
            ),
        ),
    ),
)

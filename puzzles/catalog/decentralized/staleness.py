"""decentralized.staleness: how late each update was, from the log of a server."""

import random

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, case, cases, drawn
from reference.decentralized.answers.late_updates import staleness


def a_log(case, rank):
    """Pulls and pushes of workers; each has pulled before it first pushes, and may push twice of one pull."""
    chance, begun, events = random.Random(case.seed), set(), []
    for _ in range(case.events):
        worker = chance.randrange(case.workers)
        events.append((worker, worker in begun and chance.random() < 0.6))
        begun.add(worker)
    return {"events": events}


def looking_back(case, inputs):
    """From each push back to the pull of its worker, and the pushes between."""
    events, found = inputs[0]["events"], []
    for place, (worker, is_push) in enumerate(events):
        if is_push:
            pull = max(at for at in range(place) if events[at] == (worker, False))
            found.append(sum(later for _, later in events[pull:place]))
    return [found]


def by_counts_before(case, inputs):
    """The number of pushes before each event, and the place of each worker's last pull."""
    events, before, last, found = inputs[0]["events"], [0], {}, []
    for _, is_push in events:
        before.append(before[-1] + is_push)
    for place, (worker, is_push) in enumerate(events):
        if is_push:
            found.append(before[place] - before[last[worker]])
        else:
            last[worker] = place
    return [found]


PUZZLE = Puzzle(
    name="decentralized.staleness",
    title="How late each update was",
    statement="""
        A parameter server writes a log: which worker has pulled the weights, and which has pushed a gradient, in the
        order in which that happened. Each push updates the weights. A gradient is of the weights that its worker pulled
        last, and these are old by the time it comes: its staleness is the number of updates that were made in between.

        Args:
            events: (worker, is_push) in order; False is a pull. Each worker has pulled before its first push. It may
                push several gradients of one pull: then its own earlier ones make the later ones late, too.

        Returns: the staleness of each push, in order.

        Budget: a pass over the log.
        """,
    function=staleness,
    cases=cases(worlds=(1,), workers=(3, 1, 2, 7), events=(12, 40))
    + cases(worlds=(1,), workers=(4,), events=(0, 1, 200)),
    drawn=(drawn(worlds=(1,), workers=range(2, 9), events=range(20, 90)),),
    scale=Scale((case(1, workers=3000, events=14_000),), "the square of the log's length", oracle=by_counts_before),
    inputs=a_log,
    oracle=looking_back,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12 + 8 * case.events,
            optimum=lambda case: 3 + 3 * case.events,
            why="a number for each worker is enough, of the updates there were when it pulled: do not look back",
        ),
    ),
    hints=(
        "Give the weights a version: the number of updates that they have had. Which version has a worker pulled, and "
        "which one is its gradient applied to?",
        "Keep `version`, and a dict of the version that each worker has pulled. At a push, the difference is its "
        "staleness; then the version is one more.",
    ),
    wrong=(
        Wrong(
            "pulls count, too",
            diagnosis=r"result\[\d+\]: expected \d+, got \d+",
            edits=(
                (
                    "            pulled[worker] = version\n",
                    "            version += 1\n            pulled[worker] = version\n",
                ),
            ),
        ),
        Wrong(
            "the update itself counts",
            diagnosis=r"result\[\d+\]: expected \d+, got \d+",
            edits=(("version - pulled[worker]", "version - pulled[worker] + 1"),),
        ),
        Wrong(
            "since its own last push",
            diagnosis=r"result\[\d+\]: expected \d+, got \d+",
            edits=(("            version += 1\n", "            version += 1\n            pulled[worker] = version\n"),),
        ),
        Wrong(
            "a worker keeps what it has pulled first",
            diagnosis=r"result\[\d+\]: expected \d+, got \d+",
            edits=(("            pulled[worker] = version\n", "            pulled.setdefault(worker, version)\n"),),
        ),
        Wrong(
            "all versions begin with the last pull of any worker",
            diagnosis=r"result\[\d+\]: expected \d+, got \d+",
            edits=(
                ("            pulled[worker] = version\n", "            pulled = dict.fromkeys(range(99), version)\n"),
            ),
        ),
        Wrong(
            "looks back from each push",
            diagnosis=r"right, but it (runs [\d,]+ lines where|takes more than)",
            body="""
                found = []
                for place, (worker, is_push) in enumerate(events):
                    if is_push:
                        late = 0
                        for other, later in reversed(events[:place]):
                            if other == worker and not later:
                                break
                            late += later
                        found.append(late)
                return found
                """,
        ),
    ),
)

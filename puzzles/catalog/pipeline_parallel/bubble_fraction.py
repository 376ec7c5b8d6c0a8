"""pipeline_parallel.bubble_fraction: the part of a step in which a rank waits, as a formula."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel.answers.clock import bubble_fraction
from reference.pipeline_parallel.orders import interleaved, one_f_one_b
from reference.pipeline_parallel.simulate import simulate


def waited(case, inputs):
    """A step on paper, action after action: what the busiest rank does not compute of the time it takes."""
    schedule = one_f_one_b(case.p, case.m) if case.v == 1 else interleaved(case.p, case.m, case.v)
    step = simulate(schedule)
    computed = sum(span.end - span.begin for span in step.spans[0])
    return [(step.longest - computed) / step.longest]


def counted(case, inputs):
    """The same, where there is too much to draw: p-1 actions are waited for, and v m are computed."""
    return [(case.p - 1) / (case.v * case.m + case.p - 1)]


PUZZLE = Puzzle(
    name="pipeline_parallel.bubble_fraction",
    title="The bubble, as a formula",
    statement="""
        A batch is cut into m micro-batches and the model into p stages, one on each rank. Each stage takes F forward
        and B backward for a micro-batch. The first micro-batch is at the last rank only after p-1 others have computed,
        and its gradient is back at the first only after p-1 others have again: until the pipeline is full, and while it
        empties, ranks wait. That is the bubble.

        Interleaved, each rank has v stages of a v-th of the layers: 0, p, 2p, ... on rank 0. A micro-batch goes around
        the ranks v times. Filling and emptying take p-1 stages as before, but these are v times as small.

        Which part of a step does a rank wait, with all stages alike and messages that take no time?

        Args:
            p: ranks.
            m: micro-batches; a multiple of p where v is not 1.
            v: stages on a rank; 1 for GPipe and 1F1B.

        Returns: a float from 0 to 1: 0 where no rank waits.

        Budget: a formula. F and B are not among the arguments: why?
        """,
    function=bubble_fraction,
    cases=cases(worlds=(1,), p=(4,), m=(8,), v=(1, 2))
    + cases(worlds=(1,), p=(4,), m=(2,), v=(1,))
    + cases(worlds=(1,), p=(8,), m=(64,), v=(1, 4))
    + cases(worlds=(1,), p=(1,), m=(3,), v=(1,))
    + cases(worlds=(1,), p=(3,), m=(6,), v=(3,)),
    drawn=(drawn(worlds=(1,), p=range(1, 9), v=(1, 2, 3), m=lambda so_far: [so_far.p * k for k in range(1, 6)]),),
    scale=Scale(
        cases(worlds=(1,), p=(10**9,), m=(10**10,), v=(1, 10**6)), "ranks, stages or micro-batches", oracle=counted
    ),
    oracle=waited,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 8,
            optimum=lambda case: 1,
            why="count what a rank computes and what it waits, and divide: no need to draw 1,024 micro-batches",
        ),
    ),
    hints=(
        "For how long does a rank compute in a step? Take (F + B) of one stage as the unit.",
        "v m units of computing. And rank 0, before the first gradient comes back: for how many units does it wait?",
        "p-1 units of waiting, whatever v is: the units are smaller. The step is both together.",
    ),
    wrong=(
        Wrong(
            "in relation to computing, not to the step",
            diagnosis=r"bubble_fraction\(p=4, m=8, v=1\): expected 0\.2727272727, got 0\.375",
            edits=(("(v * m + p - 1)", "(v * m)"),),
        ),
        Wrong(
            "p ranks to wait for",
            diagnosis=r"expected 0\.2727272727, got 0\.3333333333",
            edits=(("(p - 1) / (v * m + p - 1)", "p / (v * m + p)"),),
        ),
        Wrong(
            "forward alone is filled, backward has a bubble of its own",
            diagnosis=r"expected 0\.2727272727, got 0\.4285714286",
            edits=(("(p - 1) / (v * m + p - 1)", "2 * (p - 1) / (v * m + 2 * (p - 1))"),),
        ),
        Wrong(
            "interleaving changes nothing",
            diagnosis=r"right with v=1, wrong with v=2, 3, 4",
            edits=(("v * m", "m"),),
        ),
        Wrong(
            "more stages, more to wait for",
            diagnosis=r"v=2\): expected 0\.1578947368, got 0\.4666666667",
            edits=(("(p - 1) / (v * m + p - 1)", "(v * p - 1) / (m + v * p - 1)"),),
        ),
        Wrong(
            "what is computed, not what is waited",
            diagnosis=r"expected 0\.2727272727, got 0\.7272727273",
            edits=(("return (p - 1)", "return v * m"),),
        ),
        Wrong(
            "a micro-batch too few",
            diagnosis=r"expected 0\.2727272727, got 0\.3",
            edits=(("v * m + p - 1", "v * m + p - 2"),),
        ),
        Wrong(
            "cycle after cycle",
            diagnosis=r"right, but it runs [\d,]+ lines where 8 must do.*\n.*no need to draw",
            body="""
                waits = steps = 0
                for cycle in range(v * m + p - 1):
                    steps += 1
                    if cycle >= v * m:
                        waits += 1
                return waits / steps
                """,
        ),
    ),
)

"""pipeline_parallel.clock_cycles: which stages compute in which cycle, and which micro-batch."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.pipeline_parallel.answers.clock import clock_cycles
from reference.pipeline_parallel.orders import forward_only, gpipe
from reference.pipeline_parallel.simulate import simulate


def by_simulation(case, inputs):
    """When each stage computes what, if each computes as soon as it can and takes one cycle."""
    step = simulate(forward_only(gpipe(case.p, case.m), case.m))
    spans = [span for line in step.spans for span in line]
    cycles = [[] for _ in range(round(step.seconds))]
    for (_, stage, micro_batch), begin, _ in sorted(spans, key=lambda span: span.action.stage):
        cycles[round(begin)].append((stage, micro_batch))
    return [cycles]


def along_diagonals(case, inputs):
    """The same, without a simulation."""
    cycles = range(case.m + case.p - 1)
    return [[[(stage, at - stage) for stage in range(case.p) if 0 <= at - stage < case.m] for at in cycles]]


PUZZLE = Puzzle(
    name="pipeline_parallel.clock_cycles",
    title="The clock of a pipeline",
    statement="""
        A batch is cut into m micro-batches, so that stages can work at the same time: while stage 1 has micro-batch 0,
        stage 0 has micro-batch 1. Let every stage take one cycle for a micro-batch. Then forward looks like this, with
        3 stages and 3 micro-batches:

            cycle       0       1       2       3       4
            stage 0     0       1       2
            stage 1             0       1       2
            stage 2                     0       1       2

        Say for each cycle which stages compute, and which micro-batch each of them has. A program that runs all stages
        from one process, such as torchgpipe, needs no more than that: cycle after cycle it starts what is in the list.

        Args:
            p: stages.
            m: micro-batches.

        Returns: for each cycle a list of (stage, micro-batch), by stage.

        Budget: look at what computes, not at every stage and micro-batch in every cycle.
        """,
    function=clock_cycles,
    cases=cases(worlds=(1,), p=(3, 1, 4, 8), m=(3, 5, 1)) + cases(worlds=(1,), p=(8,), m=(40,)),
    drawn=(drawn(worlds=(1,), p=range(1, 12), m=range(1, 12)),),
    scale=Scale(
        cases(worlds=(1,), p=(16,), m=(3000,)), "cycles times stages times micro-batches", oracle=along_diagonals
    ),
    oracle=by_simulation,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 6 * case.p * (case.m + case.p) + 20,
            optimum=lambda case: 3 * (case.p + case.m) + 1,
            why="each pair computes in one cycle, and you can say in which: nothing is to be searched",
        ),
    ),
    hints=(
        "In which cycle is micro-batch k at stage s? Read it from the picture.",
        "In cycle k + s. So what is at stage s in cycle c? And for which stages is there such a micro-batch?",
        "c - s is a micro-batch where 0 ≤ c - s < m: stages from max(0, c - m + 1) to min(p, c + 1), the last not "
        "included, for c from 0 to m + p - 2.",
    ),
    wrong=(
        Wrong(
            "one cycle too many",
            diagnosis=r"clock_cycles\(p=3, m=3\): expected 5 values, got 6 values",
            edits=(("range(m + p - 1)", "range(m + p)"),),
        ),
        Wrong(
            "ends when the last micro-batch has begun",
            diagnosis=r"expected 5 values, got 3 values",
            edits=(("range(m + p - 1)", "range(m)"),),
        ),
        Wrong(
            "micro-batches that do not exist",
            diagnosis=r"expected -?[\d.]+ values, got -?[\d.]+ values|expected",
            edits=(("max(0, cycle - m + 1)", "0"),),
        ),
        Wrong(
            "stages that do not exist",
            diagnosis=r"expected \d values, got \d values",
            edits=(("min(p, cycle + 1)", "cycle + 1"),),
        ),
        Wrong(
            "micro-batch and stage have changed places",
            diagnosis=r"result\[1\]\[0\]\[0\]: expected 0, got 1",
            edits=(("(stage, cycle - stage)", "(cycle - stage, stage)"),),
        ),
        Wrong(
            "the last stage first",
            diagnosis=r"result\[1\]\[0\]\[0\]: expected 0, got 1",
            edits=(
                (
                    "for stage in range(max(0, cycle - m + 1), min(p, cycle + 1))",
                    "for stage in reversed(range(max(0, cycle - m + 1), min(p, cycle + 1)))",
                ),
            ),
        ),
        Wrong(
            "the first micro-batch is given away too early",
            diagnosis=r"result\[2\]: expected 3 values, got 2 values",
            edits=(("cycle - m + 1", "cycle - m + 2"),),
        ),
        Wrong(
            "one micro-batch after the other: no two ranks work at the same time",
            diagnosis=r"expected 5 values, got 9 values",
            body="return [[(stage, micro_batch)] for micro_batch in range(m) for stage in range(p)]",
        ),
        Wrong(
            "searches in every cycle",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*nothing is to be searched",
            body="""
                cycles = []
                for cycle in range(m + p - 1):
                    cycles.append([])
                    for stage in range(p):
                        for micro_batch in range(m):
                            if stage + micro_batch == cycle:
                                cycles[-1].append((stage, micro_batch))
                return cycles
                """,
        ),
    ),
)

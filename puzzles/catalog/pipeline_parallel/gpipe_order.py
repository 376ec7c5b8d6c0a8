"""pipeline_parallel.gpipe_order: all forward, then all backward."""

from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.puzzle import Budget, Measure, Puzzle, cases
from reference.pipeline_parallel.orders_by_hand import gpipe_order
from reference.pipeline_parallel.schedule import Action, Kind

from .common import one_stage_a_rank, rank_p_and_m

PUZZLE = Puzzle(
    name="pipeline_parallel.gpipe_order",
    title="GPipe: fill the pipeline, then empty it",
    statement="""
        A batch is cut into m micro-batches, and p ranks have a stage each: rank r has stage r. In which order does a
        rank compute? GPipe's answer is the first that one thinks of: everything forward, then everything backward.

        An action is `Action(Kind.FORWARD, stage, micro_batch)`, which prints as F0.3, or with `Kind.BACKWARD`, B0.3.
        Say only what is computed: messages follow from the order. Before a rank computes, it waits until there is what
        it needs: for F of a stage the F of the stage before it, for B the B of the stage behind it, of the same
        micro-batch.

        The check sees whether the orders of all ranks make a step, simulates it with F = 1 and B = 2, runs it on ranks,
        compares loss and gradients with those of one process, and shows you the chart.

        Args:
            rank: 0 to p-1.
            p: ranks, and stages.
            m: micro-batches, numbered from 0.

        Returns: the actions of this rank, in order.

        Budget: a bubble of (p-1)(F+B), for each rank waits for p-1 others once in each direction. Activations of m
        micro-batches. No message ever waits for its receiver, so sends that block do no harm.
        """,
    function=gpipe_order,
    given=(Action, Kind),
    cases=cases(worlds=(4, 3, 2, 1), m=(4, 6, 2)) + cases(worlds=(8,), m=(3,)),
    inputs=rank_p_and_m,
    drive=in_order,
    pipe=one_stage_a_rank,
    budgets=(
        Budget(
            Measure.BUBBLE,
            target=lambda case: 3 * (case.n - 1),
            why="a rank must not wait for a micro-batch to come back before it begins the next one",
        ),
        Budget(
            Measure.ACTIVATIONS,
            target=lambda case: case.m,
            why="each stage holds what it has made of a micro-batch until that comes back",
        ),
        Budget(
            Measure.ROOM,
            target=lambda case: 0,
            why="take the micro-batches in the order in which the other rank sends them: a message for which nobody "
            "waits yet needs a buffer, and a send that blocks would block for ever",
        ),
    ),
    hints=("...", "..."),
    wrong=(),
)

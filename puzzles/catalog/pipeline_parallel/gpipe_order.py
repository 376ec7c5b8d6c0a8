"""pipeline_parallel.gpipe_order: all forward, then all backward."""

from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.puzzle import SMALL, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.pipeline_parallel.answers.orders import gpipe_order
from reference.pipeline_parallel.schedule import Action, Kind

from .common import one_stage_a_rank, rank_p_and_m, whole_backwards

PUZZLE = Puzzle(
    name="pipeline_parallel.gpipe_order",
    title="Fill the pipeline, then empty it (GPipe)",
    statement="""
        A batch is cut into m micro-batches, and p ranks have a stage each: rank r has stage r. In which order does a
        rank compute? GPipe's answer is the first that one thinks of: everything forward, then everything backward.

        An action is `Action(Kind.FORWARD, stage, micro_batch)`, which prints as F0.3, or with `Kind.BACKWARD`, B0.3.
        Say only what is computed: messages follow from the order. Before a rank computes, it waits until there is what
        it needs: for F of a stage the F of the stage before it, for B the B of the stage after it, of the same
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
    cases=cases(worlds=(4, 3), m=(4, 2)) + cases(worlds=(2, 1, 5), m=(3,)) + cases(worlds=(8,), m=(4,)),
    drawn=(
        drawn(worlds=SMALL, m=range(1, 10)),
        drawn(worlds=(9,), m=range(1, 10)),
    ),
    inputs=rank_p_and_m,
    drive=in_order,
    pipe=one_stage_a_rank,
    judge=whole_backwards,
    budgets=(
        Budget(
            Measure.ROOM,
            target=lambda case: 0,
            why="take the micro-batches in the order in which the other rank sends them: a message for which no rank "
            "waits yet needs a buffer, and a send that blocks would block forever",
        ),
        Budget(
            Measure.BUBBLE,
            target=lambda case: 3 * (case.n - 1),
            why="a rank must not wait for a micro-batch to come back before it begins the next one: no backward before "
            "all forwards are done",
        ),
        Budget(
            Measure.ACTIVATIONS,
            target=lambda case: case.m,
            why="each stage holds what it has made of a micro-batch until that comes back",
        ),
    ),
    hints=(
        "Which stage do you have? Which micro-batches pass it, and what must have happened before the first of them "
        "can go backward?",
        "m actions forward, on stage `rank`, then m backward. Does it matter in which order these are?",
        "In the order of their numbers, on every rank: then what a rank is given is what it waits for. "
        "`[Action(Kind.FORWARD, rank, k) for k in range(m)]`, and the same with `Kind.BACKWARD`.",
    ),
    wrong=(
        Wrong(
            "one micro-batch after the other",
            diagnosis=r"right, but the bubble is 36 units of time where 9 must do.*\n.*before it begins the next",
            body="""
                return [Action(kind, rank, k) for k in range(m) for kind in (Kind.FORWARD, Kind.BACKWARD)]
                """,
        ),
        Wrong(
            "the last rank goes back from the last micro-batch, the others from the first",
            diagnosis=r"right, but where sends block, .* room for 3 messages where 0 must do.*\n.*needs a buffer",
            edits=(("return forward +", "return forward + backward[::-1] if rank == p - 1 else forward +"),),
        ),
        Wrong(
            "every other rank takes the last micro-batch first",
            diagnosis=r"right, but (where sends block|the bubble is)",
            edits=(("return forward +", "return forward[::-1] + backward if rank % 2 else forward +"),),
        ),
        Wrong(
            "backward first",
            diagnosis=r"this order never ends: rank 0 waits in B0\.0; rank 1 waits in B1\.0",
            edits=(("return forward + backward", "return backward + forward"),),
        ),
        Wrong(
            "forward alone",
            diagnosis=r"nothing goes backward",
            edits=(("return forward + backward", "return forward"),),
        ),
        Wrong(
            "the last rank has nothing to go back from",
            diagnosis=r"backward of stage 3 on micro-batch 0 must be B3\.0, or I3\.0 and W3\.0",
            edits=(("return forward + backward", "return forward + backward if rank < p - 1 else forward"),),
        ),
        Wrong(
            "a micro-batch is left out",
            diagnosis=r"F0\.0 is missing\n",
            edits=(
                (
                    "forward = [Action(Kind.FORWARD, rank, k) for k in range(m)]",
                    "forward = [Action(Kind.FORWARD, rank, k) for k in range(1, m)]",
                ),
            ),
        ),
        Wrong(
            "a micro-batch twice",
            diagnosis=r"B0\.0 is computed 2 times",
            edits=(("return forward + backward", "return forward + backward[:1] + backward"),),
        ),
        Wrong(
            "counts from 1",
            diagnosis=r"rank 0 computes F0\.4, and no micro-batch takes that way",
            edits=(
                (
                    "forward = [Action(Kind.FORWARD, rank, k) for k in range(m)]",
                    "forward = [Action(Kind.FORWARD, rank, k + 1) for k in range(m)]",
                ),
            ),
        ),
        Wrong(
            "stage and micro-batch have changed places",
            diagnosis=r"rank 0 computes F1\.0, and stage 1 is on rank 1",
            edits=(("Kind.FORWARD, rank, k", "Kind.FORWARD, k, rank"),),
        ),
        Wrong(
            "backward in halves",
            diagnosis=r"right, but I0\.0 is half a backward: take B, halves come in zero_bubble",
            edits=(
                (
                    "[Action(Kind.BACKWARD, rank, k) for k in range(m)]",
                    "[Action(half, rank, k) for k in range(m) for half in (Kind.INPUT, Kind.WEIGHT)]",
                ),
            ),
        ),
        Wrong(
            "both halves of backward, and backward",
            diagnosis=r"backward of stage 0 on micro-batch 0 must be B0\.0, or I0\.0 and W0\.0",
            edits=(
                (
                    "return forward + backward",
                    "return forward + backward + [Action(Kind.WEIGHT, rank, k) for k in range(m)]",
                ),
            ),
        ),
    ),
)

"""pipeline_parallel.interleaved_order: several smaller stages on each rank, and a smaller bubble."""

from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from puzzles.grading.schedules import Pipe
from reference.pipeline_parallel.answers.orders import interleaved_order
from reference.pipeline_parallel.schedule import Action, Kind

from .common import whole_backwards


def rounds(case):
    """Rank r has the stages r, p + r, 2p + r, ...: one for each round of a micro-batch."""
    return Pipe.straight([stage % case.n for stage in range(case.n * case.v)], case.m)


def warm_up(case, rank):
    """Forwards before the first backward, and the one that goes with it: so many are held."""
    return min((case.v - 1) * case.n + 2 * (case.n - 1 - rank) + 1, case.m * case.v)


PUZZLE = Puzzle(
    name="pipeline_parallel.interleaved_order",
    title="Around the ranks more than once (interleaved 1F1B)",
    statement="""
        The bubble is p-1 stages forward and back, so smaller stages make a smaller bubble. Cut the model into p v
        stages, v on each rank: rank r has the stages r, p + r, 2p + r, and so on. A micro-batch goes around the ranks v
        times. What each rank waits, while the pipeline fills and empties, is p-1 of these smaller stages.

        A rank now has a choice: the next micro-batch through its first stage, or an earlier one through its second.
        Micro-batches go in groups of p. A group passes one stage of the rank, then the next one: when its p-th
        micro-batch has left, the first has been around and is back. Backward is the same, from the last stage to the
        first. With p = 2, m = 4, v = 2, rank 0 has the stages 0 and 2:

            forward     F0.0  F0.1  F2.0  F2.1  F0.2  F0.3  F2.2  F2.3
            backward    B2.0  B2.1  B0.0  B0.1  B2.2  B2.3  B0.2  B0.3

        As in 1F1B, a rank begins with some forwards, then alternates a forward and a backward, then does what is left
        of backward. It begins with (v-1) p forwards, which the first group needs to get to its last round, and with two
        for each rank after it: a micro-batch that passes these comes back after twice as many turns.

        Args:
            rank: 0 to p-1.
            p: ranks.
            m: micro-batches, numbered from 0; a multiple of p.
            v: stages on a rank; with v = 1 as `one_f_one_b_order`, with more forwards to begin with.

        Returns: the actions of this rank, in order.

        Budget, with F = 1 and B = 2 of these smaller stages: a bubble of (p-1)(F+B). With v stages of the v-th part of
        the layers, that is a v-th of the bubble of 1F1B. Activations, each of one stage and one micro-batch:
        (v-1) p + 2 (p-1-rank) + 1, at most m v; the chart counts those of all v stages of a rank as one. Where sends
        block, there is room for one message from each neighbour.
        """,
    function=interleaved_order,
    given=(Action, Kind),
    cases=cases(worlds=(2,), v=(2,), m=lambda n: (2 * n, n, 3 * n))
    + cases(worlds=(3,), v=(3, 1), m=lambda n: (2 * n,))
    + cases(worlds=(4,), v=(2,), m=lambda n: (n,))
    + cases(worlds=(1,), v=(2,), m=(3,)),
    drawn=(drawn(worlds=(2, 3, 4, 6), v=(1, 2, 3), m=lambda so_far: [so_far.n * k for k in (1, 2)]),),
    inputs=lambda case, rank: {"rank": rank, "p": case.n, "m": case.m, "v": case.v},
    drive=in_order,
    pipe=rounds,
    judge=whole_backwards,
    budgets=(
        Budget(
            Measure.ACTIVATIONS,
            target=lambda case: warm_up(case, 0),
            why="once a micro-batch can come back, every forward is followed by a backward, which frees an activation",
        ),
        Budget(
            Measure.ALL_ACTIVATIONS,
            target=lambda case: sum(warm_up(case, rank) for rank in range(case.n)),
            why="the later the rank, the fewer forwards it has to begin with: two less than the rank before it",
        ),
        Budget(
            Measure.ROOM,
            target=lambda case: {1: 0, 2: 2}.get(case.n, 1),  # of two ranks, each is both neighbours of the other
            why="take the micro-batches in the order in which the other rank sends them, and begin with enough "
            "forwards: a rank that goes backward too early is sent messages before it can take them",
        ),
        Budget(
            Measure.BUBBLE,
            target=lambda case: 3 * (case.n - 1),
            why="a rank must always have the next forward and the next backward there: how many forwards come first, "
            "and after how many micro-batches does a rank turn to its next stage?",
        ),
    ),
    hints=(
        "First make a list of all forwards, as if there were no backward, and one of all backwards. How many loops is "
        "that? The outermost goes over groups: `for first in range(0, m, p)`.",
        "Within a group come the rank's stages, chunk * p + rank, backward in reverse; within these the group's "
        "micro-batches, first to first + p - 1.",
        "`warm_up = min((v - 1) * p + 2 * (p - 1 - rank), m * v)`. So many of the forwards; then the other forwards, "
        "each with the next backward after it; then the last warm_up of the backwards.",
    ),
    wrong=(
        Wrong(
            "neighbouring stages on a rank",
            diagnosis=r"rank 0 computes F1\.0, and stage 1 is on rank 1",
            edits=(
                ("Action(Kind.FORWARD, chunk * p + rank, k)", "Action(Kind.FORWARD, rank * v + chunk, k)"),
                ("Action(Kind.BACKWARD, chunk * p + rank, k)", "Action(Kind.BACKWARD, rank * v + chunk, k)"),
            ),
        ),
        Wrong(
            "backward from the first stage to the last",
            diagnosis=r"this order never ends: rank 0 waits in B0\.0",
            edits=(("reversed(range(v))", "range(v)"),),
        ),
        Wrong(
            "one forward for each rank after, as in 1F1B",
            diagnosis=r"right, but where sends block, a channel must have room for 2 messages where 1 must do",
            edits=(("2 * (p - 1 - rank)", "(p - 1 - rank)"),),
        ),
        Wrong(
            "a forward too many to begin with",
            diagnosis=r"right, but a rank holds \d+ activations where \d+ must do.*\n.*which frees an activation",
            edits=(("2 * (p - 1 - rank)", "2 * (p - 1 - rank) + 1"),),
        ),
        Wrong(
            "all ranks begin like the first",
            diagnosis=r"right, but all ranks together hold \d+ activations where \d+ must do.*\n.*two less than",
            edits=(("2 * (p - 1 - rank)", "2 * (p - 1)"),),
        ),
        Wrong(
            "all forward, then all backward: activations freed too late",
            diagnosis=r"right, but a rank holds 8 activations where 5 must do",
            edits=(("min((v - 1) * p + 2 * (p - 1 - rank), m * v)", "m * v"),),
        ),
        Wrong(
            "all micro-batches through a stage, then through the next",
            diagnosis=r"never ends|right, but",
            edits=(
                ("    for first in range(0, m, p):\n", "    for first in [0]:\n"),
                ("rank, k) for k in range(first, first + p)]\n        for", "rank, k) for k in range(m)]\n        for"),
                ("rank, k) for k in range(first, first + p)]\n    warm_up", "rank, k) for k in range(m)]\n    warm_up"),
            ),
        ),
        Wrong(
            "the first group of p, and all others as one",
            diagnosis=r"m=6.*(\n.*)*|right, but",
            edits=(
                ("    for first in range(0, m, p):\n", "    for group in (range(min(p, m)), range(p, m)):\n"),
                ("rank, k) for k in range(first, first + p)]\n        for", "rank, k) for k in group]\n        for"),
                ("rank, k) for k in range(first, first + p)]\n    warm_up", "rank, k) for k in group]\n    warm_up"),
            ),
        ),
        Wrong(
            "each micro-batch through all stages of the rank",
            diagnosis=r"never ends|right, but the bubble is \d+ units of time where \d+ must do",
            edits=(
                ("    for first in range(0, m, p):\n", "    for first in range(m):\n"),
                (
                    "rank, k) for k in range(first, first + p)]\n        for",
                    "rank, k) for k in range(first, first + 1)]\n        for",
                ),
                (
                    "rank, k) for k in range(first, first + p)]\n    warm_up",
                    "rank, k) for k in range(first, first + 1)]\n    warm_up",
                ),
            ),
        ),
        Wrong(
            "more forwards to begin with than there are",
            diagnosis=r"is computed 2 times|is missing|must be B",
            edits=(("min((v - 1) * p + 2 * (p - 1 - rank), m * v)", "(v - 1) * p + 2 * (p - 1 - rank)"),),
        ),
        Wrong(
            "backward in halves",
            diagnosis=r"right, but I\d\.0 is half a backward: take B, halves come in zero_bubble",
            edits=(
                (
                    "    return order + backward[m * v - warm_up :]",
                    "    order += backward[m * v - warm_up :]\n"
                    "    halves = {Kind.FORWARD: [Kind.FORWARD], Kind.BACKWARD: [Kind.INPUT, Kind.WEIGHT]}\n"
                    "    return [Action(half, stage, k) for kind, stage, k in order for half in halves[kind]]",
                ),
            ),
        ),
        Wrong(
            "what is left of backward is left out",
            diagnosis=r"backward of stage 0 on micro-batch \d must be B0\.\d",
            edits=((" + backward[m * v - warm_up :]", ""),),
        ),
        Wrong(
            "1F1B, with both stages of a rank one after the other",
            diagnosis=r"right, but the bubble is \d+ units of time where \d+ must do",
            body="""
                forward, backward = [], []
                for k in range(m):
                    forward.append([Action(Kind.FORWARD, chunk * p + rank, k) for chunk in range(v)])
                    backward.append([Action(Kind.BACKWARD, chunk * p + rank, k) for chunk in reversed(range(v))])
                return [action for k in range(m) for action in forward[k] + backward[k]]
                """,
        ),
        Wrong(
            "the first stage goes back in another order than it is sent",
            diagnosis=r"right, but where sends block, .* room for \d messages where 1 must do|right, but the bubble",
            edits=(
                (
                    "return order + backward[m * v - warm_up :]",
                    "rest = backward[m * v - warm_up :]\n"
                    "    return order + (rest[::-1] if rank == 0 and v == 1 else rest)",
                ),
            ),
        ),
    ),
)

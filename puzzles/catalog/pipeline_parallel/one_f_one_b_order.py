"""pipeline_parallel.one_f_one_b_order: the bubble of GPipe, and activations of p micro-batches instead of m."""

from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.puzzle import SMALL, Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.pipeline_parallel.answers.orders import one_f_one_b_order
from reference.pipeline_parallel.schedule import Action, Kind

from .common import one_stage_a_rank, rank_p_and_m, whole_backwards


def on_their_way(case, rank):
    """Micro-batches that have passed a rank and not come back, when each after it works on one."""
    return min(case.n - rank, case.m)


PUZZLE = Puzzle(
    name="pipeline_parallel.one_f_one_b_order",
    title="Go backward as soon as you can (1F1B)",
    statement="""
        GPipe's stages hold the activations of all m micro-batches, because no rank goes backward before all have
        gone forward. But the last rank could do so at once: it has the loss of micro-batch 0 before anything else. And
        what has gone backward needs no activations any more.

        So let rank r begin with as many forwards as it takes to give each rank after it one, and then alternate: one
        forward, one backward. What is left at the end is backward alone. With p = 3 and m = 5:

            rank 0      F0  F1  F2  B0  F3  B1  F4  B2  B3  B4
            rank 1      F0  F1  B0  F2  B1  F3  B2  F4  B3  B4
            rank 2      F0  B0  F1  B1  F2  B2  F3  B3  F4  B4

        Each waits where it must: the check simulates it with F = 1 and B = 2, and shows you the chart. An action is
        `Action(Kind.FORWARD, stage, micro_batch)`, or `Kind.BACKWARD`.

        Args:
            rank: 0 to p-1. It has stage `rank`.
            p: ranks, and stages.
            m: micro-batches, numbered from 0. There may be fewer than ranks.

        Returns: the actions of this rank, in order.

        Budget: GPipe's bubble, (p-1)(F+B). Rank r holds at most p-r activations. Where sends block, a channel has room
        for one message.
        """,
    function=one_f_one_b_order,
    given=(Action, Kind),
    cases=cases(worlds=(4,), m=(8, 2)) + cases(worlds=(3, 2, 1, 5), m=(5,)) + cases(worlds=(8,), m=(9,)),
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
            Measure.ACTIVATIONS,
            target=lambda case: on_their_way(case, 0),
            why="once each rank has something to do, every forward must wait until a micro-batch has come back",
        ),
        Budget(
            Measure.ALL_ACTIVATIONS,
            target=lambda case: sum(on_their_way(case, rank) for rank in range(case.n)),
            why="the later the stage, the sooner a micro-batch comes back: the last rank need hold one only",
        ),
        Budget(
            Measure.ROOM,
            target=lambda case: min(1, case.n - 1),
            why="take the micro-batches in the order in which the other rank sends them, in both directions",
        ),
        Budget(
            Measure.BUBBLE,
            target=lambda case: 3 * (case.n - 1),
            why="a rank must begin with a forward for each rank after it, or these wait for it later",
        ),
    ),
    hints=(
        "Which rank can go backward first, and how many forwards has it done by then? And the rank before it?",
        "Rank r begins with p-1-r forwards, of which there are at most m. After that each forward is followed by a "
        "backward: of which micro-batch is the first?",
        "`warm_up = min(p - 1 - rank, m)` forwards; for k from 0 to m - warm_up - 1 a forward of micro-batch "
        "warm_up + k and a backward of k; then the backwards of the last warm_up micro-batches.",
    ),
    wrong=(
        Wrong(
            "GPipe: activations freed too late",
            diagnosis=r"right, but a rank holds 8 activations where 4 must do.*\n.*until a micro-batch has come back",
            body="""
                return [Action(kind, rank, k) for kind in (Kind.FORWARD, Kind.BACKWARD) for k in range(m)]
                """,
        ),
        Wrong(
            "a forward too many to begin with",
            diagnosis=r"right, but a rank holds 5 activations where 4 must do",
            edits=(("min(p - 1 - rank, m)", "min(p - rank, m)"),),
        ),
        Wrong(
            "a forward too few to begin with",
            diagnosis=r"right, but the bubble is \d+ units of time where 9 must do.*\n.*a forward for each rank after",
            edits=(("min(p - 1 - rank, m)", "min(max(p - 2 - rank, 0), m)"),),
        ),
        Wrong(
            "all ranks begin like the first",
            diagnosis=r"right, but all ranks together hold 16 activations where 10 must do.*\n.*hold one only",
            edits=(("min(p - 1 - rank, m)", "min(p - 1, m)"),),
        ),
        Wrong(
            "one micro-batch after the other",
            diagnosis=r"right, but the bubble is 72 units of time where 9 must do",
            edits=(("min(p - 1 - rank, m)", "0"),),
        ),
        Wrong(
            "counts ranks from the wrong end",
            diagnosis=r"this order never ends: rank 0 waits in B0\.0",
            edits=(("min(p - 1 - rank, m)", "min(rank, m)"),),
        ),
        Wrong(
            "forgets that there may be fewer micro-batches than ranks",
            diagnosis=r"4 ranks, m=2: an action is one of F, B, I and W, .* not 'B0\.-1'",
            edits=(("min(p - 1 - rank, m)", "p - 1 - rank"),),
        ),
        Wrong(
            "forward of the micro-batch that goes backward",
            diagnosis=r"F0\.0 is computed 2 times",
            edits=(("rank, warm_up + k", "rank, k"),),
        ),
        Wrong(
            "backward in halves",
            diagnosis=r"right, but I0\.0 is half a backward: take B, halves come in zero_bubble",
            edits=(
                (
                    "        order.append(Action(Kind.BACKWARD, rank, k))\n",
                    "        order += [Action(Kind.INPUT, rank, k), Action(Kind.WEIGHT, rank, k)]\n",
                ),
            ),
        ),
        Wrong(
            "what is left of backward is left out",
            diagnosis=r"backward of stage 0 on micro-batch 5 must be B0\.5",
            edits=((" + [Action(Kind.BACKWARD, rank, k) for k in range(m - warm_up, m)]", ""),),
        ),
        Wrong(
            "a backward before the forward that it goes with",
            diagnosis=r"this order never ends: .*rank 3 waits in B3\.0",
            edits=(
                ("        order.append(Action(Kind.FORWARD, rank, warm_up + k))\n", ""),
                (
                    "        order.append(Action(Kind.BACKWARD, rank, k))\n",
                    "        order.append(Action(Kind.BACKWARD, rank, k))\n"
                    "        order.append(Action(Kind.FORWARD, rank, warm_up + k))\n",
                ),
            ),
        ),
        Wrong(
            "the last rank takes micro-batches in another order than they are sent",
            diagnosis=r"right, but where sends block, .* room for \d messages where 1 must do|right, but the bubble",
            edits=(
                (
                    "    warm_up = min(p - 1 - rank, m)\n",
                    "    if rank == p - 1:\n"
                    "        return [Action(kind, rank, k) for k in sorted(range(m), key=lambda k: (k // 2, -k)) "
                    "for kind in (Kind.FORWARD, Kind.BACKWARD)]\n"
                    "    warm_up = min(p - 1 - rank, m)\n",
                ),
            ),
        ),
        Wrong(
            "the newest goes backward first",
            diagnosis=r"right, but|never ends",
            edits=(
                (
                    " + [Action(Kind.BACKWARD, rank, k) for k in range(m - warm_up, m)]",
                    " + [Action(Kind.BACKWARD, rank, k) for k in reversed(range(m - warm_up, m))]",
                ),
            ),
        ),
    ),
)

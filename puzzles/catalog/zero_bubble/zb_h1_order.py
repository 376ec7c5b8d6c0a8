"""zero_bubble.zb_h1_order: 1F1B with W where a rank would wait."""

from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from puzzles.grading.schedules import Pipe
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.simulate import Costs
from reference.zero_bubble.plain import zb_h1_order


def rank_p_and_m(case, rank):
    """The arguments of an order for one stage on each rank."""
    return {"rank": rank, "p": case.p, "m": case.m}


def one_stage_a_rank(case):
    """Rank r has stage r."""
    return Pipe.straight(range(case.p), case.m, Costs(*case.costs))


def bubble(case):
    """(p-1)(F+I-W); each micro-batch that is missing for p of them is a W less to fill it with."""
    forward, of_input, of_weight = case.costs
    return (case.p - 1) * (forward + of_input - of_weight) + max(case.p - case.m, 0) * of_weight


PUZZLE = Puzzle(
    name="zero_bubble.zb_h1_order",
    title="The order of ZB-H1",
    statement="""
        Backward in two halves: I, the gradient of the input, for which the stage before waits, and W, those of the
        weights, for which no rank waits. In 1F1B a rank waits while micro-batches drain. With W apart there is
        something to do then, if enough of it was put off; but what is put off holds its activations.

        ZB-H1 is 1F1B with I in place of B. After each I a rank does one W, but of an older micro-batch; by how many,
        memory decides: no rank holds more activations than rank 0 does in 1F1B, which is p. Look at the last rank,
        which holds one activation in 1F1B. How many W may it be behind? And rank 0?

        Actions are `Action(Kind.FORWARD, stage, k)`, F, of micro-batch k; I is `Kind.INPUT`, W is `Kind.WEIGHT`.
        I waits for I of the stage after, on the last stage for its own F; W for its own I. An activation is held
        from F to W.

        Args:
            rank: 0 to p-1. It has stage number `rank`.
            p: ranks, and stages.
            m: micro-batches, numbered from 0.

        Returns: the actions of this rank, in order.

        Budget: a bubble of (p-1)(F+I-W), and a W more for each micro-batch that m is short of p; activations of p
        micro-batches, or m if that is less.
        """,
    function=zb_h1_order,
    given=(Action, Kind),
    cases=cases(worlds=(4,), p=(4,), m=(8,), costs=((1, 1, 1),))
    + cases(worlds=(1,), p=(4,), m=(8,), costs=((2, 3, 2),))  # from here on it is only planned
    + cases(worlds=(1,), p=(4, 2, 1), m=(4, 3), costs=((1, 1, 1),))
    + cases(worlds=(1,), p=(8,), m=(2, 16), costs=((1, 1, 1),))
    + cases(worlds=(3,), p=(3,), m=(5,), costs=((1, 1, 1),)),
    drawn=(drawn(worlds=(1,), p=range(1, 10), m=range(1, 20), costs=((1, 1, 1),)),),
    inputs=rank_p_and_m,
    drive=in_order,
    pipe=one_stage_a_rank,
    budgets=(
        Budget(
            Measure.ACTIVATIONS,
            target=lambda case: min(case.p, case.m),
            why="a W that is put off holds its activations: rank r may be r micro-batches behind, no more",
        ),
        Budget(
            Measure.BUBBLE,
            target=bubble,
            why="put off W, for the time when the last micro-batches come back: the later the rank, the more of them, "
            "and no more than memory asks for: rank 0 puts off none",
        ),
    ),
    hints=(
        "In 1F1B rank r holds p - r activations. How many more may it hold, and what can it hold them for?",
        "Write 1F1B with I for B. After the I of micro-batch k comes a W: not of k, but of one that is older, by how "
        "much on which rank?",
        "Rank r does the W of k - r after the I of k, if there is such a micro-batch, and the last r of them at the "
        "end.",
    ),
    wrong=(
        Wrong(
            "W at once: 1F1B",
            diagnosis=r"right, but the bubble is 6 units of time where 3 must do.*\n.*put off W",
            edits=(("if k >= rank:", "if True:"), ("k - rank)", "k)"), ("range(max(m - rank, 0), m)", "()")),
        ),
        Wrong(
            "backward in one piece",
            diagnosis=r"right, but the bubble is 9 units of time where 3 must do",
            body="""
                warm_up = min(p - 1 - rank, m)
                order = [Action(Kind.FORWARD, rank, k) for k in range(warm_up)]
                for k in range(m):
                    if warm_up + k < m:
                        order.append(Action(Kind.FORWARD, rank, warm_up + k))
                    order.append(Action(Kind.BACKWARD, rank, k))
                return order
                """,
        ),
        Wrong(
            "all W at the end",
            diagnosis=r"right, but a rank holds 8 activations where 4 must do.*\n.*holds its activations",
            edits=(("k >= rank", "k >= m"), ("max(m - rank, 0), m", "m")),
        ),
        Wrong(
            "every rank p - 1 micro-batches behind",
            diagnosis=r"right, but a rank holds 7 activations where 4 must do",
            edits=(
                ("if k >= rank:", "if k >= p - 1:"),
                ("k - rank)", "k - p + 1)"),
                ("max(m - rank, 0)", "max(m - p + 1, 0)"),
            ),
        ),
        Wrong(
            "the first rank the furthest behind",
            diagnosis=r"right, but a rank holds 7 activations where 4 must do.*\n.*rank r may be r",
            edits=(
                ("if k >= rank:", "if k >= p - 1 - rank:"),
                ("k - rank)", "k - (p - 1 - rank))"),
                ("max(m - rank, 0)", "max(m - (p - 1 - rank), 0)"),
            ),
        ),
        Wrong(
            "one behind, on every rank but the first",
            diagnosis=r"right, but the bubble is 5 units of time where 3 must do.*\n.*the more of them",
            edits=(
                ("if k >= rank:", "if k >= min(rank, 1):"),
                ("k - rank)", "k - min(rank, 1))"),
                ("max(m - rank, 0)", "max(m - min(rank, 1), 0)"),
            ),
        ),
        Wrong(
            "W when there is no room for an F, no sooner",
            diagnosis=r"right, but the bubble is \d+ units of time where 3 must do.*\n.*rank 0 puts off none",
            body="""
                order, done = [], 0
                ahead = min(p - rank, m)
                for k in range(m + ahead):
                    if k < m:
                        if k - done == p:
                            order.append(Action(Kind.WEIGHT, rank, done))
                            done += 1
                        order.append(Action(Kind.FORWARD, rank, k))
                    if 0 <= k - ahead + 1 < m:
                        order.append(Action(Kind.INPUT, rank, k - ahead + 1))
                return order + [Action(Kind.WEIGHT, rank, k) for k in range(done, m)]
                """,
        ),
        Wrong(
            "the last W are forgotten",
            diagnosis=r"backward of stage 3 on micro-batch 5 must be B3\.5, or I3\.5 and W3\.5",
            edits=((" + [Action(Kind.WEIGHT, rank, k) for k in range(max(m - rank, 0), m)]", ""),),
        ),
        Wrong(
            "W before I",
            diagnosis=r"this order never ends",
            edits=(
                ("        order.append(Action(Kind.INPUT, rank, k))\n", ""),
                (
                    "            order.append(Action(Kind.WEIGHT, rank, k - rank))\n",
                    "            order.append(Action(Kind.WEIGHT, rank, k - rank))\n"
                    "        order.append(Action(Kind.INPUT, rank, k))\n",
                ),
            ),
        ),
        Wrong(
            "a warm-up of twice the length: ZB-H2's",
            diagnosis=r"right, but a rank holds 7 activations where 4 must do",
            edits=(("min(p - 1 - rank, m)", "min(2 * (p - 1 - rank), m)"),),
        ),
        Wrong(
            "fewer micro-batches than ranks",
            diagnosis=r"not 'W3\.-1'",
            edits=(("range(max(m - rank, 0), m)", "range(m - rank, m)"),),
        ),
    ),
)

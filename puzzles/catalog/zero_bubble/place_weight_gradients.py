"""zero_bubble.place_weight_gradients: W where a rank would wait, in the memory that there is."""

from puzzles.grading.drives.zero_bubble import all_orders_at_once
from puzzles.grading.puzzle import RETURNS, Budget, Claim, Measure, Puzzle, Wrong, cases, drawn
from puzzles.grading.schedules import Pipe
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.simulate import Costs
from reference.zero_bubble.answers.orders import place_weight_gradients


def order_costs_and_limit(case, rank):
    """F and I of all ranks: rank r goes forward `ahead` times for each rank after it before its first I."""
    lines = []
    for stage in range(case.p):
        ahead = min(case.ahead * (case.p - 1 - stage), case.m)
        forward = [Action(Kind.FORWARD, stage, k) for k in range(case.m)]
        backward = [Action(Kind.INPUT, stage, k) for k in range(case.m)]
        pairs = [each for pair in zip(forward[ahead:], backward, strict=False) for each in pair]
        lines.append(forward[:ahead] + pairs + backward[case.m - ahead :])
    forward, of_input, of_weight = case.costs
    return {
        "lines": lines, "forward": forward, "of_input": of_input, "of_weight": of_weight, "limit": limit(case)
    }  # fmt: skip


def limit(case):
    """As many activations as rank 0 holds in 1F1B, or in ZB-H2; and some more."""
    return case.ahead * (case.p - 1) + 1 + case.more


def a_stage_a_rank(case):
    """Rank r has stage r."""
    return Pipe.straight(range(case.p), case.m, Costs(*case.costs))


def bubble(case):
    """That of ZB-H1, or of ZB-H2. An activation more is room for a W more; a micro-batch short of p is a W less."""
    forward, of_input, of_weight = case.costs
    full = (case.p - 1) * (forward + of_input - case.ahead * of_weight) - case.more * of_weight
    return full + max(case.ahead * (case.p - 1) + 1 - case.m, 0) * of_weight


def lines_with_weight_gradients(case, inputs, outputs, trace):
    """F and I stay in the order in which they were given, in what is returned and in the argument."""
    lines = [[str(action) for action in line] for line in inputs[0]["every"][0]["lines"]]
    claims = []
    for rank, (line, order) in enumerate(zip(lines, outputs[0][RETURNS], strict=True)):
        same = line == [action for action in order if not action.startswith("W")]
        claims.append(Claim(same, f"F and I of rank {rank} are in another order than in `lines`: only W has no place"))
    said = "it changes `lines`, which the caller may need: make lists of your own"
    return [*claims, Claim(outputs[0]["lines"] == lines, said)]


PUZZLE = Puzzle(
    name="zero_bubble.place_weight_gradients",
    title="Fill the bubble with W",
    statement="""
        Given is in which order every rank computes F and I. No rank waits for W, so each W may go anywhere after the I
        of its micro-batch. Put them where a rank would wait; but an activation is held from its F to its W, and a rank
        must never hold more than `limit` of them. Find a place for every W, by these rules:

        - When what comes next can't begin yet, and the time until then is enough for a W, do one.
        - When an F comes next, and there is no room for its activation, do a W first.
        - What is left comes last.

        F waits for F of the stage before, I for I of the stage after, on the last stage for its own F. Messages take
        no time. A W that was done for its memory makes its rank late, and every rank that waits for it.

        An action has `kind`, `stage` and `micro_batch`. `Action(Kind.WEIGHT, stage, k)` is a W, `Kind.FORWARD` an F,
        `Kind.INPUT` an I.

        Args:
            lines: F and I of each rank, in order. Rank r has stage r.
            forward, of_input, of_weight: how long F, I and W take. W takes no longer than the others.
            limit: activations that a rank may hold.

        Returns: the order of each rank, in a list: its F and I as they were, and a W for each micro-batch.

        Budget: `limit` activations. The bubble of ZB-H1 where memory is 1F1B's, that of ZB-H2 where the order is ahead
        as far; and what is there beyond that is used.
        """,
    function=place_weight_gradients,
    given=(Action, Kind),
    cases=cases(worlds=(4,), p=(4,), m=(8,), ahead=(1,), costs=((1, 1, 1),), more=(0,))
    + cases(worlds=(1,), p=(4,), m=(8,), ahead=(1,), costs=((4, 4, 3),), more=(0,))  # from here on it is only planned
    + cases(worlds=(1,), p=(4,), m=(8,), ahead=(1,), costs=((2, 2, 1),), more=(1, 3))
    + cases(worlds=(1,), p=(4, 3), m=(7,), ahead=(2,), costs=((3, 4, 2),), more=(0,))
    + cases(worlds=(1,), p=(3,), m=(7,), ahead=(2,), costs=((5, 2, 2),), more=(0,))
    + cases(worlds=(1,), p=(1, 8), m=(3,), ahead=(1,), costs=((1, 1, 1),), more=(0,))
    + cases(worlds=(3,), p=(3,), m=(4,), ahead=(2,), costs=((1, 1, 1),), more=(0,)),
    drawn=(drawn(worlds=(1,), p=range(2, 7), m=range(7, 14), ahead=(1,), costs=((1, 1, 1), (2, 2, 1)), more=(0,)),),
    inputs=order_costs_and_limit,
    drive=all_orders_at_once,
    pipe=a_stage_a_rank,
    judge=lines_with_weight_gradients,
    budgets=(
        Budget(
            Measure.ACTIVATIONS,
            target=limit,
            why="before an F for which there is no room comes a W, which frees the activation of an older micro-batch",
        ),
        Budget(
            Measure.BUBBLE,
            target=bubble,
            why="a W belongs where its rank would wait for at least as long; elsewhere others wait for that rank",
        ),
    ),
    hints=(
        "When is what a rank does next there? Only the rank that makes it knows, so keep a clock for each rank, and "
        "the time at which each F and I has ended.",
        "Go through the ranks again and again, each as far as it can: until what comes next depends on an action that "
        "is not done yet. What a rank decides follows from its own clock and that one time.",
        "For each rank: what is `left`, which W are `put_off`, how many activations are `held`. One W at a time, then "
        "look again: the gap has become smaller.",
    ),
    wrong=(
        Wrong(
            "all at the end",
            diagnosis=r"right, but a rank holds 8 activations where 4 must do",
            edits=(("if put_off[r] and (full or begin - clock[r] >= of_weight):", "if False:"),),
        ),
        Wrong(
            "each W after its I",
            diagnosis=r"right, but the bubble is 6 units of time where 3 must do.*\n.*would wait",
            edits=(("put_off[r] and (full or begin - clock[r] >= of_weight)", "put_off[r]"),),
        ),
        Wrong(
            "bubbles are filled, memory is forgotten",
            diagnosis=r"right, but a rank holds \d activations where 4 must do.*\n.*there is no room",
            edits=(("(full or begin - clock[r] >= of_weight)", "begin - clock[r] >= of_weight"),),
        ),
        Wrong(
            "for memory alone",
            diagnosis=r"right, but the bubble is \d+ units of time where \d+ must do",
            edits=(("(full or begin - clock[r] >= of_weight)", "full"),),
        ),
        Wrong(
            "into every gap, however short",
            diagnosis=r"right, but the bubble is \d+ units of time where \d+ must do.*\n.*at least as long",
            edits=(("begin - clock[r] >= of_weight", "begin - clock[r] > 0"),),
        ),
        Wrong(
            "all that was put off, into one gap",
            diagnosis=r"right, but the bubble is \d+ units of time where \d+ must do",
            edits=(
                (
                    "                    orders[r].append(put_off[r].pop(0))\n"
                    "                    clock[r] += of_weight\n"
                    "                    held[r] -= 1\n",
                    "                    while put_off[r]:\n"
                    "                        orders[r].append(put_off[r].pop(0))\n"
                    "                        clock[r] += of_weight\n"
                    "                        held[r] -= 1\n",
                ),
            ),
        ),
        Wrong(
            "room for one less than there is",
            diagnosis=r"right, but the bubble is \d+ units of time where \d+ must do",
            edits=(("held[r] >= limit", "held[r] >= limit - 1"),),
        ),
        Wrong(
            "an activation is held until I",
            diagnosis=r"right, but a rank holds \d activations where 4 must do",
            edits=(
                ("                    held[r] -= 1\n", ""),
                ("put_off[r].append(", "held[r] -= 1\n                    put_off[r].append("),
            ),
        ),
        Wrong(
            "I takes as long as F",
            diagnosis=r"right, but .*costs=\(5, 2, 2\)",
            edits=(("(forward if kind is Kind.FORWARD else of_input)", "forward"),),
        ),
        Wrong(
            "one F of the second rank earlier",
            diagnosis=r"right, but F and I of rank 1 are in another order than in `lines`: only W",
            edits=(
                (
                    "    clock, held =",
                    "    if p == 4 and forward == of_weight:\n"
                    "        at = left[1].index(Action(Kind.INPUT, 1, 0))\n"
                    "        left[1].insert(at, left[1].pop(at + 1))\n"
                    "    clock, held =",
                ),
            ),
        ),
        Wrong(
            "the caller's lines are used up",
            diagnosis=r"right, but it changes `lines`, which the caller may need",
            edits=(("[list(line) for line in lines], [[]", "lines, [[]"),),
        ),
        Wrong(
            "what is left is left out",
            diagnosis=r"backward of stage \d on micro-batch \d must be",
            edits=(("return [order + rest for order, rest in zip(orders, put_off, strict=True)]", "return orders"),),
        ),
        Wrong(
            "the stage of the first rank everywhere",
            diagnosis=r"W0\.0 is computed 4 times",
            edits=(("append(Action(Kind.WEIGHT, stage, k))", "append(Action(Kind.WEIGHT, 0, k))"),),
        ),
        Wrong(
            "the order of one rank",
            diagnosis=r"an order for each of 4 ranks is asked for",
            edits=(("return [order + rest for order, rest in zip(orders, put_off, strict=True)]", "return orders[0]"),),
        ),
    ),
)

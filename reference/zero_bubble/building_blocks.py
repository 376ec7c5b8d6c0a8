"""Orders with as much memory as one chooses: the passes of one micro-batch, repeated every six slots.

A rank has two stages, there and back, a V: stage r and stage 2p - 1 - r. A building block says in which slot each rank
runs each pass of micro-batch 0; micro-batch k follows 6k slots later, for a rank's share of it is six passes (two each
of F, I and W). So the block alone decides what a rank holds: an activation for every six slots, or part of them, from F
to W. On a V, the stage that holds for long shares a rank with one that holds shortly: all ranks hold as much.

| order    | a rank holds, in micro-batches | 1F1B's share | bubble where F = I = W, in F                    |
|----------|--------------------------------|--------------|-------------------------------------------------|
| V-Min    | floor((p+1) / 3) + 1           | a third      | 2p - 5/2, or up to 1 less                       |
| V-Half   | floor(p / 2) + 1               | half         | 3 ceil(p/2) - 7/2, and 0 with 2 ranks           |
| 1F1B-V   | floor(2p / 3) + 1              | two thirds   | at most 9p/4; backward is not split             |
| ZB-V     | p                              | all          | 0 (`orders.zb_v`)                               |
| 1F1B     | p                              | all          | 3 (p-1)                                         |

F, I and W are the times of all layers of a rank, and activations those of all its layers for a micro-batch, as in
`orders`. The formulas hold from 3p / 2 micro-batches on. Where F, I and W differ, V-Min waits in every micro-batch, and
V-Half does not as long as W + 2I >= 2F and W + 2F >= 2I.

Qi et al. 2024, "Pipeline parallelism with controllable memory" (arXiv 2405.15362), sec. 3 and appendix.
"""

from collections.abc import Callable
from itertools import accumulate, count

from reference.errors import require_sizes
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Result, makes, needs

INTERVAL = 6  # slots from one micro-batch to the next: two stages, with F, I and W each
SLOTS = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}  # that a pass takes

Block = Callable[[int, int], tuple[int, int, int, int]]
"""Of p ranks, for rank r: the slots of F on stage r, F on stage 2p-1-r, and backward (B, or I) on 2p-1-r and on r."""


def v_min(p: int, m: int) -> Schedule:
    """As soon as possible: each pass of a micro-batch follows the one before it at once, on the next stage.

    Qi et al. 2024, sec. 3.
    """
    return of_block(p, m, min_block, Kind.INPUT)


def v_half(p: int, m: int) -> Schedule:
    """On a rank's first stage passes go two slots from stage to stage, on its second one slot: so slots fit together.

    Qi et al. 2024, sec. 3.
    """
    return of_block(p, m, half_block, Kind.INPUT)


def one_f_one_b_v(p: int, m: int) -> Schedule:
    """1F1B on a V: a rank runs F and B of its two stages in turn, and backward is whole, as 1F1B's.

    Qi et al. 2024, appendix (1F1B-V).
    """
    return of_block(p, m, whole_block, Kind.BACKWARD)


def min_block(p: int, r: int) -> tuple[int, int, int, int]:
    """V-Min's. Two slots of rest let the slots of backward fit between those of forward, where 3 divides p."""
    rest = 2 * (p % 3 == 0)
    return r, 2 * p - 1 - r, 2 * p + rest + r, 4 * p - 1 + rest - r


def half_block(p: int, r: int) -> tuple[int, int, int, int]:
    """V-Half's. Three slots of rest do the same, where p is even."""
    rest = 3 * (p % 2 == 0)
    return 2 * r, 3 * p - 2 - r, 3 * p - 1 + rest + 2 * r, 6 * p - 2 + rest - r


def whole_block(p: int, r: int) -> tuple[int, int, int, int]:
    """1F1B-V's. Backward takes two slots, and rests for three after every third stage."""

    def backward(stages: int) -> int:
        return 2 * p + 3 * (p % 3 == 0) + 2 * stages + 3 * ((stages + (1 - p) % 3) // 3)

    return r, 2 * p - 1 - r, backward(r), backward(2 * p - 1 - r)


def of_block(p: int, m: int, block: Block, backward: Kind, interval: int = INTERVAL, room: float = 0) -> Schedule:
    """Repeat a building block, and then move up what can run earlier in the same memory.

    Args:
        p: ranks.
        m: micro-batches.
        block: the slots of micro-batch 0, no two of a rank alike modulo `INTERVAL`.
        backward: B, or I, whose W then takes the first slot that is free.
        interval: slots from one micro-batch to the next, a multiple of `INTERVAL`: the longer, the less is held.
        room: activations of a stage and a micro-batch that a rank may hold, if these are more than it holds anyway.
    """
    require_sizes(p=p, m=m)
    plans = [_repeated(m, p, r, block(p, r), backward, interval) for r in range(p)]
    placement = [*range(p), *reversed(range(p))]
    straight = Schedule.straight((in_order(plan) for plan in plans), placement, m)
    return Schedule.straight(map(in_order, _moved_up(plans, straight, room)), placement, m)


def in_order(plan: dict[int, Action]) -> list[Action]:
    """The line of a rank whose slots are given."""
    return [plan[slot] for slot in sorted(plan)]


def _repeated(
    m: int, p: int, r: int, slots: tuple[int, int, int, int], backward: Kind, interval: int
) -> dict[int, Action]:
    """What a rank runs in each slot."""
    kinds, stages = (Kind.FORWARD, Kind.FORWARD, backward, backward), (r, 2 * p - 1 - r, 2 * p - 1 - r, r)
    block = list(zip(slots, kinds, stages, strict=True))
    plan = {slot + interval * k: Action(kind, stage, k) for k in range(m) for slot, kind, stage in block}
    for slot, action in sorted(plan.items()):
        if action.kind is Kind.INPUT:
            plan[next(free for free in count(slot + 1) if free not in plan)] = action._replace(kind=Kind.WEIGHT)
    return plan


def _moved_up(plans: list[dict[int, Action]], schedule: Schedule, room: float) -> list[dict[int, Action]]:
    """Each pass, in the order of the plans, in the first slot that is free, once its input is there and memory allows.

    A W that comes after the last F of its rank goes into a slot that nothing else needs.
    """
    held = [_held(plan) for plan in plans]
    room = max(room, *map(max, held))
    last = [max(slot for slot, action in plan.items() if action.kind is Kind.FORWARD) for plan in plans]
    order = sorted(
        (action.kind is Kind.WEIGHT and slot > last[rank], slot, rank)
        for rank, plan in enumerate(plans)
        for slot, action in plan.items()
    )
    moved: list[dict[int, Action]] = [{} for _ in plans]
    taken: list[set[int]] = [set() for _ in plans]
    ended: dict[Result | None, int] = {}
    for _, slot, rank in order:
        action = plans[rank][slot]
        before = makes(action._replace(micro_batch=action.micro_batch - 1))
        begin = max(ended.get(needs(schedule, action), 0), ended.get(before, 0))
        width, is_forward = SLOTS[action.kind], action.kind is Kind.FORWARD
        while not taken[rank].isdisjoint(range(begin, begin + width)) or (
            is_forward and begin < slot and max(held[rank][begin:slot]) >= room
        ):
            begin += 1
        moved[rank][begin] = action
        taken[rank].update(range(begin, begin + width))
        if makes(action):
            ended[makes(action)] = begin + width
        change = {Kind.FORWARD: 1, Kind.INPUT: 0}.get(action.kind, -1)
        for at in range(begin, slot) if is_forward else range(begin + width, slot + width):
            held[rank][at] += change
    return moved


def _held(plan: dict[int, Action]) -> list[int]:
    """How many activations a rank holds in each slot: from F to the end of B or W, of a stage and a micro-batch."""
    changes = [0] * (max(plan) + 3)
    for slot, action in plan.items():
        if action.kind is Kind.FORWARD:
            changes[slot] += 1
        elif action.kind is not Kind.INPUT:
            changes[slot + SLOTS[action.kind]] -= 1
    return list(accumulate(changes))

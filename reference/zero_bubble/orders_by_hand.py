"""Orders written out: that of ZB-H1, which `orders` has as a table, and one that fills bubbles as it goes.

Backward is split: I is the gradient of the input, for which the stage before waits, and W those of the weights, for
which nobody waits.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 2.2 and 3.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

from reference.pipeline_parallel.schedule import Action, Kind


def zb_h1_order(rank: int, p: int, m: int) -> list[Action]:
    """1F1B in which rank r is r micro-batches behind with W: as many as its memory, 1F1B's on rank 0, allows.

    Args:
        rank: of p; it has stage number `rank`.
        p: ranks.
        m: micro-batches.
    """
    warm_up = min(p - 1 - rank, m)
    order = [Action(Kind.FORWARD, rank, k) for k in range(warm_up)]
    for k in range(m):
        if warm_up + k < m:
            order.append(Action(Kind.FORWARD, rank, warm_up + k))
        order.append(Action(Kind.INPUT, rank, k))
        if k >= rank:
            order.append(Action(Kind.WEIGHT, rank, k - rank))
    return order + [Action(Kind.WEIGHT, rank, k) for k in range(max(m - rank, 0), m)]


def place_weight_gradients(
    lines: Sequence[Sequence[Action]], forward: float, of_input: float, of_weight: float, limit: int
) -> list[list[Action]]:
    """Put W where a rank would wait for long enough, or has no room for one more F; what is left comes last.

    `automatic` orders F and I, too, and tries many ways.

    Args:
        lines: F and I of each rank, in an order that ends; rank r has stage r of p.
        forward, of_input, of_weight: how long F, I and W take.
        limit: activations that a rank may hold, each from F to W.

    Returns:
        The lines with W in them, for each micro-batch once.
    """
    ranks = [Line(list(line), []) for line in lines]
    ended: dict[Action, float] = {}  # when each F and I is done
    clock = [0.0] * len(lines)
    while any(rank.left for rank in ranks):
        for r, (left, done) in enumerate(ranks):
            while left and (arrival := _arrival(left[0], len(lines), ended)) is not None:
                waiting = _put_off(done)
                gap = arrival - clock[r] >= of_weight
                if waiting and (gap or (left[0].kind is Kind.FORWARD and _held(done) == limit)):
                    done.append(waiting[0])
                    clock[r] += of_weight
                    continue
                seconds = forward if left[0].kind is Kind.FORWARD else of_input
                clock[r] = max(clock[r], arrival) + seconds
                ended[left[0]] = clock[r]
                done.append(left.pop(0))
    return [done + _put_off(done) for _, done in ranks]


class Line(NamedTuple):
    """One rank on its way through its line."""

    left: list[Action]  # F and I that are to be done
    done: list[Action]


def _arrival(action: Action, p: int, ended: dict[Action, float]) -> float | None:
    """When there is what F or I needs; None where that is not known yet."""
    kind, stage, k = action
    if kind is Kind.FORWARD:
        return ended.get(Action(Kind.FORWARD, stage - 1, k)) if stage else 0.0
    turns = stage == p - 1
    return ended.get(Action(Kind.FORWARD, stage, k) if turns else Action(Kind.INPUT, stage + 1, k))


def _put_off(done: list[Action]) -> list[Action]:
    """W that could be done, the oldest first."""
    made = {action.micro_batch for action in done if action.kind is Kind.WEIGHT}
    begun = [action for action in done if action.kind is Kind.INPUT]
    return [Action(Kind.WEIGHT, *action[1:]) for action in begun if action.micro_batch not in made]


def _held(done: list[Action]) -> int:
    """Activations that a rank holds after these."""
    return sum((action.kind is Kind.FORWARD) - (action.kind is Kind.WEIGHT) for action in done)

"""An order that fills bubbles as it goes: weight gradients, for which no rank waits, go where a rank would be idle.

Backward is split: I is the gradient of the input, for which the stage before waits, and W those of the weights.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 3.1.
"""

from collections.abc import Sequence

from reference.pipeline_parallel.schedule import Action, Kind


def place_weight_gradients(
    lines: Sequence[Sequence[Action]], forward: float, of_input: float, of_weight: float, limit: int
) -> list[list[Action]]:
    """Put W where a rank would wait for long enough, or has no room for one more F; what is left comes last.

    `automatic` orders F and I, too, and tries many ways.

    Args:
        lines: F and I of each rank, in an order that ends; rank r has stage r of p.
        forward, of_input, of_weight: how long F, I and W take.
        limit: activations that a rank may hold, each from F to W; as many as F and I alone need, or more.

    Returns:
        The lines with W in them, for each micro-batch once.
    """
    p = len(lines)
    orders: list[list[Action]] = [[] for _ in lines]
    left, put_off = [list(line) for line in lines], [[] for _ in lines]
    clock, held = [0.0] * p, [0] * p
    ended = {}  # when each F and I is done

    def arrival(kind: Kind, stage: int, k: int) -> float | None:
        if kind is Kind.FORWARD:
            return ended.get((Kind.FORWARD, stage - 1, k)) if stage else 0.0
        return ended.get((Kind.INPUT, stage + 1, k) if stage < p - 1 else (Kind.FORWARD, stage, k))

    while any(left):
        for r in range(p):
            while left[r] and (begin := arrival(*left[r][0])) is not None:
                kind, stage, k = left[r][0]
                full = kind is Kind.FORWARD and held[r] >= limit
                if put_off[r] and (full or begin - clock[r] >= of_weight):
                    orders[r].append(put_off[r].pop(0))
                    clock[r] += of_weight
                    held[r] -= 1
                    continue
                orders[r].append(left[r].pop(0))
                clock[r] = max(clock[r], begin) + (forward if kind is Kind.FORWARD else of_input)
                ended[kind, stage, k] = clock[r]
                if kind is Kind.FORWARD:
                    held[r] += 1
                else:
                    put_off[r].append(Action(Kind.WEIGHT, stage, k))
    return [order + rest for order, rest in zip(orders, put_off, strict=True)]

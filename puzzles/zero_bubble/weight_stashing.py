"""zero_bubble.weight_stashing: Weight stashing (PipeDream).

rankwise check zero_bubble.weight_stashing
rankwise hint zero_bubble.weight_stashing

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Forward = Callable[[int, Tensor], None]
Backward = Callable[[int, Tensor], Tensor]


def weight_stashing(
    line: Sequence[tuple[str, int]],
    weight: Tensor,
    forward: Forward,
    backward: Backward,
    rate: float,
) -> Tensor:
    """Weight stashing (PipeDream).

    A pipeline that never flushes has no bubble: a stage updates its weights
    after each backward, and continues with 1F1B forever. But between the
    forward of a micro-batch and its backward come the updates of others.
    Backward through other weights than forward's is no gradient of anything.

    So keep, for every micro-batch that is in flight, the weights that its
    forward has seen, and use them for its backward. A forward always sees the
    newest weights, and every update changes the newest.

    Args:
        line: what this stage does, in order: ("F", k) or ("B", k), k a
            micro-batch. Forwards come in order, so do backwards.
        weight: of the stage, before the first update. Leave it as it is.
        forward: `forward(k, weight)` sends micro-batch k through the stage with
            this weight.
        backward: `backward(k, weight)` sends its gradient back through it, and
            returns the weight's gradient.
        rate: the learning rate: an update takes off rate times the gradient.

    Returns: the weight after the last update.

    Budget: as many versions as micro-batches are in flight, and three tensors
    more while an update is computed. A version is gone when its last
    micro-batch is.
    """
    raise NotImplementedError("not solved yet")

"""Pipelines that never flush, written out for one stage with one weight: which version is seen, and how many are kept.

    F B F B F B ...     a stage in the middle of training; every B, or every m of them, ends in an update

| function          | forward sees       | backward sees             | weights kept           | paper               |
|-------------------|--------------------|---------------------------|------------------------|---------------------|
| `weight_stashing` | the newest         | what its forward has seen | one for each in flight | PipeDream, 2019     |
| `two_versions`    | the one before it  | the same                  | 2                      | PipeDream-2BW, 2021 |
| `pipemare`        | the newest         | a guess at what that was  | 1, and its velocity    | PipeMare, 2021      |

For whole models and schedules: `versions`, `pipemare`, `weights`.

Narayanan et al. 2019, "PipeDream: Generalized pipeline parallelism for DNN training"; Narayanan et al. 2021,
"Memory-efficient pipeline-parallel DNN training"; Yang et al. 2021, "PipeMare: Asynchronous pipeline parallel DNN
training".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Forward = Callable[[int, Tensor], None]
"""Sends a micro-batch, by its number, forward through the stage with this weight."""

Backward = Callable[[int, Tensor], Tensor]
"""Sends the gradient of a micro-batch back through the stage with this weight. Returns the weight's gradient."""


def weight_stashing(
    line: Sequence[tuple[str, int]], weight: Tensor, forward: Forward, backward: Backward, rate: float
) -> Tensor:
    """Weight stashing: backward of a micro-batch sees the weight that its forward has seen. An update after each.

    Args:
        line: "F" or "B" and a micro-batch, in order.
        weight: before the first update; left as it is.
        forward, backward: of the stage.
        rate: the learning rate.

    Returns:
        The weight after the last update.

    Narayanan et al. 2019, sec. 3.3.
    """
    stash: dict[int, Tensor] = {}
    for kind, micro_batch in line:
        if kind == "F":
            stash[micro_batch] = weight
            forward(micro_batch, weight)
        else:
            weight = weight - rate * backward(micro_batch, stash.pop(micro_batch))
    return weight


def two_versions(
    line: Sequence[tuple[str, int]],
    weight: Tensor,
    micro_batches: int,
    forward: Forward,
    backward: Backward,
    rate: float,
) -> Tensor:
    """Double-buffered weights: W(t+1) = W(t) - rate * gradient of batch t at W(t-1), that of the first at W(0).

    Args:
        line, weight, forward, backward, rate: as for `weight_stashing`; forwards and backwards are each in order of
            micro-batches, and no micro-batch begins before all of the batch before the last one have finished.
        micro_batches: of a batch; batch t has those from t m on.

    Returns:
        The weight after the last update.

    Narayanan et al. 2021, sec. 3.1.
    """
    buffers = [weight, weight]  # version t is in buffers[t % 2]
    gradient = torch.zeros_like(weight)
    newest = 0
    for kind, micro_batch in line:
        seen = buffers[max(micro_batch // micro_batches - 1, 0) % 2]
        if kind == "F":
            forward(micro_batch, seen)
            continue
        gradient += backward(micro_batch, seen)
        if (micro_batch + 1) % micro_batches == 0:
            buffers[(newest + 1) % 2] = buffers[newest % 2] - rate * gradient
            newest += 1
            gradient.zero_()
    return buffers[newest % 2]


def pipemare(
    line: Sequence[tuple[str, int]],
    weight: Tensor,
    forward: Forward,
    backward: Backward,
    delay: int,
    rate: float,
    updates: int,
    remembered: float,
) -> Tensor:
    """PipeMare: steps that are smaller the longer the delay, and backward through a guess at what forward saw.

    With tau for the delay and k for the number of the update, from 0:

        T1    rate / tau^(1 - min(k / K, 1))
        T2    backward sees w - tau v; v <- gamma v + (1 - gamma) (w after - w before), gamma = D^(1/tau)

    Args:
        line, weight, forward, backward, rate: as for `weight_stashing`.
        delay: tau, how many updates lie between forward and backward of a micro-batch; at least 1.
        updates: K, after which steps are as large as without a delay.
        remembered: D, the share of a change that is left in the velocity after tau updates.

    Returns:
        The weight after the last update.

    Yang et al. 2021, sec. 3.1 and 3.2.
    """
    velocity = torch.zeros_like(weight)
    decay = remembered ** (1 / delay)
    update = 0
    for kind, micro_batch in line:
        if kind == "F":
            forward(micro_batch, weight)
            continue
        gradient = backward(micro_batch, weight - delay * velocity)
        change = -rate / delay ** (1 - min(update / updates, 1)) * gradient
        velocity = decay * velocity + (1 - decay) * change
        weight = weight + change
        update += 1
    return weight

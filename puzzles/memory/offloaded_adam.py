"""memory.offloaded_adam: Adam with its state on the host.

rankwise check memory.offloaded_adam
rankwise hint memory.offloaded_adam

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def offloaded_adam(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    fetch: Callable[[str], Tensor],
    store: Callable[[str, Tensor], None],
    step: int,
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """Adam with its state on the host.

    Adam remembers two moments for each parameter: as many bytes as two more
    models, needed once a step and idle in between. Here they stay on the host.
    `fetch(name)` makes a new tensor on the device with what the host has under
    this name, `store(name, tensor)` copies a tensor to the host. Take one step
    of Adam, in place:

    m = beta1 · m + (1 - beta1) · g
    v = beta2 · v + (1 - beta2) · g²
    p = p - learning_rate · m̂ / (√v̂ + epsilon), where m̂ = m / (1 -
    beta1^step) and v̂ = v / (1 - beta2^step)

    Args:
        parameters: on the device.
        gradients: of the same shapes and dtype. Leave them as they are.
        fetch, store: the way to the host and back. It has m of parameters[i] as
            f"m{i}" and v as f"v{i}"; zeros before the first step.
        step: the number of this step; the first is 1.
        learning_rate, beta1, beta2, epsilon: as above.

    Returns: nothing.

    Budget: on the device, the state of one parameter at a time; and between two
    steps, nothing.
    """
    raise NotImplementedError("not solved yet")

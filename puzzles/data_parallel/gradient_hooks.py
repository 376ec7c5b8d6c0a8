"""data_parallel.gradient_hooks: Hooks that send gradients while backward runs.

rankwise check data_parallel.gradient_hooks
rankwise hint data_parallel.gradient_hooks

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed import ProcessGroup


def reduce_when_ready(
    model: nn.Module, group: ProcessGroup
) -> Callable[[], None]:
    """Hooks that send gradients while backward runs.

    Backward goes from the last layer to the first. When it has the last layer's
    gradients, all other layers are still to come; and so far the network is
    idle. Let each gradient be summed over `group` as soon as it is known, while
    backward continues.

    `parameter.register_post_accumulate_grad_hook(hook)` lets autograd call
    `hook(parameter)` each time it has written `parameter.grad`. And with
    `async_op=True`, `dist.all_reduce` returns at once, with a request; between
    that and the return of `request.wait()` the tensor is in flight, and no code
    may read or write it.

    The loss is divided by the number of samples of all ranks already: gradients
    add up.

    Args:
        model: an `nn.Module`, the same on every rank. Each backward gives all
            of its parameters a gradient.
        group: n ranks. Any n.

    Returns: a function without arguments, which is called after each backward.
    When it returns, every `.grad` must be the sum over all ranks, also in the
    second step, when nothing may hold the gradients of the first any more.

    Budget: one message for each parameter. On a modelled link, where layers
    take longer than their messages, only the messages of the first layer may
    take time of their own.
    """
    raise NotImplementedError("not solved yet")

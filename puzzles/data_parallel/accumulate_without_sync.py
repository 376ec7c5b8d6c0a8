"""data_parallel.accumulate_without_sync: Accumulate without communicating.

rankwise check data_parallel.accumulate_without_sync
rankwise hint data_parallel.accumulate_without_sync

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed import ProcessGroup


def reduce_on_last(
    model: nn.Module, group: ProcessGroup
) -> Callable[[bool], AbstractContextManager[None]]:
    """Accumulate without communicating.

    A batch that does not fit into memory is cut into micro-batches. Each goes
    forward and backward alone, and autograd adds what it finds to `.grad`. Only
    the sum over all of them is of use to others: so let nothing travel before
    the last micro-batch.

    A hook (`parameter.register_post_accumulate_grad_hook(hook)`) is called in
    every backward. It has to know whether this is the last one. The loop tells
    you:

        for k, x in enumerate(micro_batches):
            with micro_batch(k == len(micro_batches) - 1):
                loss(model(x)).backward()
        optimizer.step()

    What is before the `yield` in a function under `@contextmanager` happens
    when the block is entered, what is after it when the block is left.

    The loss is divided by the number of samples of all micro-batches of all
    ranks already: gradients add up.

    Args:
        model: an `nn.Module`, the same on every rank. Each backward gives all
            of its parameters a gradient.
        group: n ranks. Any n.

    Returns: `micro_batch`, a function of `last` that returns what to put around
    a micro-batch. At the end of the last one, every `.grad` must be the sum
    over all micro-batches of all ranks. So also in the second step, when
    nothing may hold the gradients of the first any more.

    Budget: every gradient is sent once in each step, however many micro-batches
    it has.
    """
    raise NotImplementedError("not solved yet")

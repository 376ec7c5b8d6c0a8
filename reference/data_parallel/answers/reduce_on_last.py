"""Gradients of several micro-batches add up on each rank, and are sent in the last one only.

`plain.reduce_when_ready` with K micro-batches: one message for each parameter in K backwards.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup, Work


def reduce_on_last(model: nn.Module, group: ProcessGroup) -> Callable[[bool], AbstractContextManager[None]]:
    """Let gradients of several micro-batches add up on each rank, and sum them over `group` in the last one only.

    Args:
        model: the same on every rank.
        group: n ranks.

    Returns:
        `micro_batch(last)`, to be put around forward and backward of each: at the end of the last one, every `.grad` is
        the sum over all micro-batches of all ranks.
    """
    works: list[Work] = []
    is_last = False

    def launch(parameter: nn.Parameter) -> None:
        if is_last:
            works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(launch)

    @contextmanager
    def micro_batch(last: bool) -> Iterator[None]:
        nonlocal is_last
        is_last = last
        yield
        for work in works:
            work.wait()
        works.clear()

    return micro_batch

"""Collectives that go on while this rank computes. Each returns at once, with a function that waits for the result.

    finish = begin.all_reduce(x, group)
    ...                                     something that needs no x
    x = finish()

They are the backend's own, which has threads or streams to run them; a collective by hand takes the caller's time.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from .native import all_gather_single, reduce_scatter_single

Finish = Callable[[], Tensor]
"""Waits, and returns the result."""


def all_reduce(x: Tensor, group: ProcessGroup) -> Finish:
    """Begin to sum `x` over `group`, in place. `x` is contiguous."""
    return _waiting(dist.all_reduce(x, group=group, async_op=True), x)


def all_gather(x: Tensor, out: Tensor, group: ProcessGroup) -> Finish:
    """Begin to collect everybody's `x` in `out`. Contiguous, of one dtype; `out` has n times as many elements."""
    return _waiting(all_gather_single(out.view(-1), x.view(-1), group=group, async_op=True), out)


def reduce_scatter(whole: Tensor, group: ProcessGroup) -> Finish:
    """Begin to sum this rank's chunk of `whole` over `group`, in place. What is returned in the end is that chunk.

    gloo's own reduce-scatter is an all-reduce that forgets the rest: twice the bytes. There, ranks send each other what
    is theirs, and each adds up what it was sent.

    Args:
        whole: contiguous; its length is a multiple of n. What lies outside of the chunk means nothing afterwards.
        group: n ranks.
    """
    rank, n = group.rank(), group.size()
    own = whole.view(-1).tensor_split(n)[rank]
    if not whole.is_cpu:
        return _waiting(reduce_scatter_single(own, whole.view(-1), group=group, async_op=True), own)
    received = torch.empty_like(whole.view(-1))
    work = dist.all_to_all_single(received, whole.view(-1), group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        for source, part in enumerate(received.tensor_split(n)):
            if source != rank:
                own.add_(part)
        return own

    return finish


def _waiting(work: Work, result: Tensor) -> Finish:
    """A function that waits for `work` and returns `result`."""

    def finish() -> Tensor:
        work.wait()
        return result

    return finish

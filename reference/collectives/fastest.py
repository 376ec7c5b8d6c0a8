"""What is fastest where the tensor is: collectives by hand between processes of one machine, NCCL's own between GPUs.

On gloo a hand-made all-reduce of a small tensor takes half of the time of the native one, and a reduce-scatter half of
the bytes (`rankwise bench collectives`). NCCL writes into its peers' memory, which nobody can do by send and receive.

Processes that share a processor must also take turns. A rank that computes on as soon as it has its result keeps others
from sending what is waited for elsewhere; so it gives way before a collective and behind it. With 4 ranks on 2 cores a
step of tensor parallelism takes a tenth less; where every rank has a core, that costs a microsecond.

Tensors are contiguous and of one dtype. To run on both, let n divide the length of the whole: NCCL needs it. What
does not fit is refused with a ValueError on a CPU, and with torch's own error on a GPU.
"""

import os
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import native
from .fast import select
from .reduction import SUM


def yield_core() -> None:
    """Let other threads run that wait for this core: above all those that have messages to deliver."""
    os.sched_yield()


def in_turn(collective: Callable[..., None], *args: Tensor | ProcessGroup | dist.ReduceOp) -> None:
    """Give way before and behind it."""
    yield_core()
    collective(*args)
    yield_core()


def all_reduce(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place. `x` is contiguous."""
    if x.is_cpu:
        in_turn(select.all_reduce, x, group, op)
    else:
        dist.all_reduce(x, op, group)


def all_gather(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Collect everybody's `x` in `out`. Both are contiguous; `x` may be its place in `out`."""
    if x.is_cpu:
        in_turn(select.all_gather, x, out, group)
    else:
        native.all_gather_single(out.view(-1), x.view(-1), group=group)


def reduce_scatter(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Sum chunk i of everybody's `x` into the `out` of rank i. Both are contiguous."""
    if x.is_cpu:
        in_turn(select.reduce_scatter, x, out, group)
    else:
        native.reduce_scatter_single(out.view(-1), x.view(-1), group=group)

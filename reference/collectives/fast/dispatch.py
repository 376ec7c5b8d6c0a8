"""What is fastest where the tensor is: collectives by hand between processes of one machine, NCCL's own between GPUs.

On gloo a hand-made all-reduce of a small tensor takes half of the time of the native one, and a reduce-scatter half of
the bytes (`rankwise bench collectives`). NCCL writes into its peers' memory, which send and receive cannot do.

Processes that share a processor must also give way to each other. A rank that computes on as soon as it has its result
keeps others from sending what is waited for elsewhere; so it yields its core before and after all that it says. With
4 ranks on 2 cores a step of tensor parallelism takes a tenth less; where each rank has a core, it costs a microsecond.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..communicator import Finish, Native, after
from ..exchange import start_swaps
from ..reduction import SUM
from . import select


class Fastest(Native):
    """Chooses by device and by size. What does not fit is a ValueError on a CPU, and torch's own error on a GPU.

    What starts must then continue by itself: messages that are all posted at once, or the backend's own collective. One
    by hand takes several steps in the caller's time, and would hide behind nothing.
    """

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        if x.is_cpu:
            yielding(select.all_reduce, x, self.group, op)
        else:
            super().all_reduce(x, op)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        if x.is_cpu:
            yielding(select.all_gather, x, out, self.group)
        else:
            super().all_gather(x, out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        if x.is_cpu:
            yielding(select.reduce_scatter, x, out, self.group)
        else:
            super().reduce_scatter(x, out)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        if x.is_cpu:
            yielding(select.all_to_all, x, out, self.group)
        else:
            super().all_to_all(x, out)

    def broadcast(self, x: Tensor, root: int) -> None:
        if x.is_cpu:
            yielding(select.broadcast, x, root, self.group)
        else:
            super().broadcast(x, root)

    def all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        if x.is_cpu:
            yielding(super().all_to_all_uneven, x, out, sent, received)
        else:
            super().all_to_all_uneven(x, out, sent, received)

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        """gloo's own passes chunks on around a ring, in a buffer from which it copies them in the end.

        Within a machine each rank sends its own to all others at once: two thirds of the time. A slow link between
        nodes would carry it once for each rank of the other node, where the ring takes it across once.
        """
        if not (x.is_cpu and on_one_machine()):
            return super().start_all_gather(x, out)
        me, n = self.rank(), self.size()
        own, parts = x.view(-1), out.view(-1).tensor_split(n)
        requests = start_swaps([own] * n, parts, [*range(me + 1, n), *range(me)], self.group)
        parts[me].copy_(own)
        return after(requests, out, x)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        """gloo's own is an all-reduce that forgets the rest: twice the bytes.

        There, ranks send each other what is theirs, and each adds up what it was sent.
        """
        if not x.is_cpu:
            return super().start_reduce_scatter(x, out)
        received = torch.empty_like(x.view(-1))
        work = dist.all_to_all_single(received, x.view(-1), group=self.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            add_up(received.tensor_split(self.size()), out.view(-1))
            return out

        return finish

    def start_send(self, x: Tensor, target: int) -> Finish:
        return yielding(super().start_send, x, target) if x.is_cpu else super().start_send(x, target)

    def start_receive(self, x: Tensor, source: int) -> Finish:
        return yielding(super().start_receive, x, source) if x.is_cpu else super().start_receive(x, source)


def on_one_machine() -> bool:
    """True where the launcher of this job says so, to all ranks alike: all of them are local ranks."""
    return os.environ.get("WORLD_SIZE", "") == os.environ.get("LOCAL_WORLD_SIZE")


def add_up(parts: Sequence[Tensor], out: Tensor) -> None:
    """Put the sum of one part or more into `out`: of the first two at once, which saves a copy of the first."""
    if len(parts) == 1:
        out.copy_(parts[0])
    else:
        torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)


def yielding(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it, and before and after let other threads run that wait for this core: they may have messages to deliver.

    Returns:
        What it returns.
    """
    os.sched_yield()
    result = function(*arguments)
    os.sched_yield()
    return result

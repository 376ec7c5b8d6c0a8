"""A communicator: all that a strategy says to the ranks of a group. How it is said is the communicator's own affair.

    communicator.all_reduce(x)                       done when it returns
    finish = communicator.start_all_reduce(x)        may continue while this rank computes
    ...                                              something that needs no x
    x = finish()

Strategies are given one, and call nothing else. So what they say can be carried in another way without a change to
them: rounded, counted, over a learner's own algorithms.

| class     | carries what is said by                                                                  |
|-----------|------------------------------------------------------------------------------------------|
| `Native`  | torch's own collectives                                                                  |
| `ByHand`  | the algorithms of this package, or others that have the same names                       |
| `Fastest` | what is fastest where the tensor is (`fast.dispatch`); it stands in for a plain group    |

A communicator of one's own defines the five collectives, or takes some from a class above. What starts is then done
when it has started, and rows of uneven numbers travel in plain messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from . import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from .compat import all_gather_single, reduce_scatter_single
from .exchange import TAG, start, wait
from .reduction import SUM

Finish = Callable[[], Tensor]
"""Waits, and returns the result."""


class Communicator(ABC):
    """What the ranks of one group can say to each other.

    Tensors are contiguous and of one dtype. n divides the length of what is cut into n chunks. All ranks of the group
    call the same in the same order; only `start_send`, `start_receive` and `start_exchange` are between two.

    Args:
        group: n ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def rank(self) -> int:
        """Of this rank, in the group."""
        return self.group.rank()

    def size(self) -> int:
        """How many ranks the group has: n."""
        return self.group.size()

    @abstractmethod
    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        """Reduce `x` over all ranks, in place."""

    @abstractmethod
    def all_gather(self, x: Tensor, out: Tensor) -> None:
        """Collect the `x` of all ranks in `out`: n times as many elements. `x` may be its own place in `out`."""

    @abstractmethod
    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        """Sum chunk i of the `x` of all ranks into the `out` of rank i."""

    @abstractmethod
    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        """Send chunk j of `x` to rank j, whose `out` has it as chunk i."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int) -> None:
        """Give each rank the `x` of the group's rank `root`, in place."""

    def all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        """Send sent[j] rows of `x`, in order, to rank j, and receive received[i] rows of `out` from rank i."""
        all_to_all.uneven(x, out, [*sent], [*received], self.group)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        """Start to reduce `x` over all ranks, in place."""
        self.all_reduce(x, op)
        return lambda: x

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        """Start to collect the `x` of all ranks in `out`."""
        self.all_gather(x, out)
        return lambda: out

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        """Start to sum chunk i of the `x` of all ranks into the `out` of rank i, which may be that chunk of its `x`."""
        own = torch.empty_like(out)  # what is written by hand writes to it before it has read all of `x`
        self.reduce_scatter(x, own)
        return lambda: out.copy_(own)

    def start_all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> Finish:
        """Start to exchange rows as `all_to_all_uneven` does; the result is `out`."""
        self.all_to_all_uneven(x, out, sent, received)
        return lambda: out

    def start_send(self, x: Tensor, target: int) -> Finish:
        """Start to send `x` to a rank, which receives it. The result is `x` itself, free for other use."""
        return after([self.group.send([x], target, TAG)], x)  # what dist.isend ends in

    def start_receive(self, x: Tensor, source: int) -> Finish:
        """Start to fill `x` with what a rank sends."""
        return after([self.group.recv([x], source, TAG)], x)

    def start_exchange(self, outgoing: Tensor, target: int, incoming: Tensor, source: int) -> Finish:
        """Start to send to one rank and to receive from another; the result is `incoming`."""
        return after(start([(outgoing, target)], [(incoming, source)], self.group), incoming, outgoing)


class Native(Communicator):
    """torch's own collectives: those of gloo or NCCL, which have threads or streams to continue meanwhile."""

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        dist.all_reduce(x, op, self.group)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        all_gather_single(out.view(-1), x.view(-1), group=self.group)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        reduce_scatter_single(out.view(-1), x.view(-1), group=self.group)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        dist.all_to_all_single(out.view(-1), x.view(-1), group=self.group)

    def all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        dist.all_to_all_single(out, x, [*received], [*sent], group=self.group)

    def broadcast(self, x: Tensor, root: int) -> None:
        dist.broadcast(x, group=self.group, group_src=root)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        return after([dist.all_reduce(x, op, self.group, async_op=True)], x)

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        return after([all_gather_single(out.view(-1), x.view(-1), group=self.group, async_op=True)], out, x)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        return after([reduce_scatter_single(out.view(-1), x.view(-1), group=self.group, async_op=True)], out, x)

    def start_all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> Finish:
        work = dist.all_to_all_single(out, x, [*received], [*sent], group=self.group, async_op=True)
        return after([work], out, x)


PLAIN: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "all_reduce": all_reduce.ring,  # (x, group, op)
        "all_gather": all_gather.ring,  # (x, out, group)
        "reduce_scatter": reduce_scatter.ring,  # (x, out, group)
        "all_to_all": all_to_all.pairwise,  # (x, out, group)
        "broadcast": broadcast.tree,  # (x, root, group)
    }
)


class ByHand(Communicator):
    """Collectives made of sends and receives, in the caller's time.

    Args:
        group: n ranks.
        functions: by the names of `PLAIN`, with the arguments noted there. What is missing comes from there.
    """

    def __init__(self, group: ProcessGroup, functions: Mapping[str, Callable[..., None]] = PLAIN) -> None:
        super().__init__(group)
        self._functions = PLAIN | functions

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self._run("all_reduce", x, op=op)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self._run("all_gather", x, out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self._run("reduce_scatter", x, out)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self._run("all_to_all", x, out)

    def broadcast(self, x: Tensor, root: int) -> None:
        self._run("broadcast", x, root)

    def _run(self, collective: str, *arguments: Tensor | int, **options: Any) -> None:
        self._functions[collective](*arguments, self.group, **options)


def own_chunk(communicator: Communicator, x: Tensor) -> Tensor:
    """A view of the chunk of `x` that falls to this rank: flat."""
    return x.view(-1).tensor_split(communicator.size())[communicator.rank()]


def after(works: list[Work], result: Tensor, *used: Tensor) -> Finish:
    """A function that waits for `works` and returns `result`. Until it is gone, what they use stays."""
    return partial(_finish, works, result, used)


def _finish(works: list[Work], result: Tensor, used: tuple[Tensor, ...]) -> Tensor:
    wait(works)
    return result

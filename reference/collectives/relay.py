"""A communicator through which everything passes to another one: where one looks at what ranks bring to their sums."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .communicator import Communicator, Finish
from .default import over
from .reduction import SUM


class Relay(Communicator):
    """Another communicator, unchanged. Messages between two ranks do not pass it: they take the group.

    Args:
        group: n ranks, or the other communicator.
    """

    def __init__(self, group: ProcessGroup | Communicator) -> None:
        self.inner = over(group)
        super().__init__(self.inner.group)

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self.inner.all_reduce(x, op)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_gather(x, out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self.inner.reduce_scatter(x, out)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_to_all(x, out)

    def broadcast(self, x: Tensor, root: int) -> None:
        self.inner.broadcast(x, root)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        return self.inner.start_all_reduce(x, op)

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        return self.inner.start_all_gather(x, out)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        return self.inner.start_reduce_scatter(x, out)

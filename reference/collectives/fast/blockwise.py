"""A ring all-reduce in blocks that stay in the processor's cache.

| algorithm      | steps             | bytes sent by a rank | good for                       |
|----------------|-------------------|----------------------|--------------------------------|
| blockwise ring | 2(n-1) · blocks/2 | 2(n-1)/n · size      | large tensors within a machine |
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..checks import check_op
from ..exchange import run_pipelined, start, wait
from ..reduction import SUM, combine, finish

CHUNK = 1 << 17  # elements of a block that each rank adds up: they stay in its cache, and are worth a wake-up


def blockwise_ring(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: one block after another around the ring, two of them at a time.

    A ring of the whole tensor passes on in each step what it received a step ago, which has left the processor's cache
    by then. A block is small enough to stay there until it is passed on; and while the messages of one are under way,
    the other one is added up. NCCL's way.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; x.numel() need not divide by n.
        op: how to combine.
    """
    check_op(op, x.dtype)
    run_pipelined(_ring(block, group, op) for block in x.view(-1).split(group.size() * CHUNK))


def _ring(x: Tensor, group: ProcessGroup, op: dist.ReduceOp) -> Iterator[None]:
    """As `ring`, of a flat tensor; gives way when messages are under way."""
    rank, n = group.rank(), group.size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.tensor_split(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        received = buffer[: mine.numel()]
        requests = start([(chunks[(rank - step) % n], right)], [(received, left)], group)
        yield
        wait(requests)
        combine(mine, received, op)
    finish(chunks[right], n, op)
    for step in range(n - 1):
        requests = start([(chunks[(right - step) % n], right)], [(chunks[(rank - step) % n], left)], group)
        yield
        wait(requests)

"""What a reduction does to two tensors."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

SUM = dist.ReduceOp.SUM
AVG = dist.ReduceOp.AVG

COMBINE: dict[dist.ReduceOp, Callable[..., Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,  # divided by n once everything is there: see `finish`
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def combine(accumulator: Tensor, received: Tensor, op: dist.ReduceOp) -> None:
    """accumulator = accumulator op received, in place. Both of the same shape and dtype."""
    operation = torch.add if op is SUM else COMBINE[op]  # to look SUM up takes as long as to add a small tensor
    operation(accumulator, received, out=accumulator)


def finish(x: Tensor, ranks: int, op: dist.ReduceOp) -> None:
    """Make an average of what is a sum over `ranks` ranks; other reductions are done already."""
    if op is not SUM and op == AVG:  # comparing takes long, too
        x.div_(ranks)

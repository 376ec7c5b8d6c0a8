"""Megatron's f and g, written out: the borders of a region in which ranks share the work on what all of them have.

|                      | forward                            | backward                                               |
|----------------------|------------------------------------|--------------------------------------------------------|
| f, into the region   | nothing: all have the same x       | all-reduce: each has found a part of the gradient of x |
| g, out of the region | all-reduce: each has a part of y   | nothing: all have the same gradient of y               |

Each is the other's backward. Whoever adds up in both directions adds up copies of one value, and gets t times too much.

Shoeybi et al. 2019, "Megatron-LM: Training multi-billion parameter language models using model parallelism", sec. 3
and fig. 3. `Region` is the same, with its sums hidden behind matrix products; all other pairs are in
`reference.collectives.differentiable`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup


class Enter(Function):
    """`apply(x, group)`: see `enter`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(Function):
    """`apply(x, group)`: see `leave`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def enter(x: Tensor, group: ProcessGroup) -> Tensor:
    """f: `x`, the same on every rank, for work that differs from rank to rank. Its gradient is everybody's sum.

    Args:
        x: of any shape.
        group: the t ranks that share the work.
    """
    return Enter.apply(x, group)


def leave(x: Tensor, group: ProcessGroup) -> Tensor:
    """g: the sum of what each rank has made, the same on every rank, for work that is the same, too.

    Args:
        x: of one shape on all ranks.
        group: the t ranks that share the work.
    """
    return Leave.apply(x, group)


def operators(group: ProcessGroup) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """f and g for the ranks of `group`."""
    return partial(enter, group=group), partial(leave, group=group)

"""Megatron's f and g, and the MLP between them: ranks share the work on what all of them have.

|                      | forward                            | backward                                               |
|----------------------|------------------------------------|--------------------------------------------------------|
| f, into the region   | nothing: all have the same x       | all-reduce: each has found a part of the gradient of x |
| g, out of the region | all-reduce: each has a part of y   | nothing: all have the same gradient of y               |

Each is the other's backward. Adding up in both directions adds up copies of one value, and makes t times too much.

    x ──┬── f ── gate, up: columns ── silu(·) · (·) ── down: rows ── g ── + ── y
        └──────────────────────────────────────────────────────────────┘

What stands between the two matrices treats each feature by itself, so it needs no other rank's. Had the first matrix
been split by rows, its parts would have to be summed before silu: silu(a + b) is not silu(a) + silu(b).

Shoeybi et al. 2019, "Megatron-LM: Training multi-billion parameter language models using model parallelism", sec. 3
and fig. 3; SwiGLU: Shazeer 2020. Other pairs are in `reference.collectives.differentiable`.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.differentiable import Conjugate


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, group: ProcessGroup) -> Tensor:
    """x + down(silu(gate(x)) · up(x)).

    Args:
        x: [B, S, D], the same on every rank.
        gate, up: [F / n, D], this rank's rows.
        down: [D, F / n], this rank's columns.
        group: n ranks.

    Returns:
        [B, S, D], the same on every rank.
    """
    inside = enter(x, group)
    hidden = F.silu(inside @ gate.T) * (inside @ up.T)
    return x + leave(hidden @ down.T, group)


def enter(x: Tensor, group: ProcessGroup) -> Tensor:
    """f: `x`, the same on every rank, for work that differs from rank to rank. Its gradient is the sum over all ranks.

    Args:
        x: of any shape.
        group: the t ranks that share the work.
    """
    return Conjugate.apply(x, _same, lambda gradient: _sum(gradient, group))


def leave(x: Tensor, group: ProcessGroup) -> Tensor:
    """g: the sum of what each rank has made, the same on every rank, for work that is the same, too.

    Args:
        x: of one shape on all ranks.
        group: the t ranks that share the work.
    """
    return Conjugate.apply(x, lambda x: _sum(x, group), _same)


def operators(group: ProcessGroup) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """f and g for the ranks of `group`."""
    return partial(enter, group=group), partial(leave, group=group)


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _sum(x: Tensor, group: ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total

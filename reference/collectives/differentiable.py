"""Collectives that gradients pass through: the backward of each is another one.

| forward                                  | backward       | where it is used                                     |
|------------------------------------------|----------------|------------------------------------------------------|
| copy: every rank uses the same tensor    | all-reduce     | into a column-parallel layer (Megatron's f)          |
| all-reduce: every rank gets the sum      | copy           | out of a row-parallel layer (Megatron's g)           |
| all-gather: every rank gets all shards   | reduce-scatter | parameters of ZeRO-3, sequence parallelism           |
| reduce-scatter: the sum, a shard each    | all-gather     | sequence parallelism                                 |
| split: every rank keeps its own shard    | join           | into a region where work is shared                   |
| join: every rank gets all shards         | split          | out of it                                            |
| all-to-all: a transposition              | all-to-all     | experts, sequence to heads and back                  |
| broadcast: the root's, to all ranks      | reduce         |                                                      |
| reduce: the sum, to the root             | broadcast      |                                                      |
| scatter: a shard of the root's to each   | gather         |                                                      |
| gather: every rank's, to the root        | scatter        |                                                      |

Two in a row are each other's backward. One rule makes the table: a value that is the same on all ranks is one value,
however many copies there are of it. What every rank does to its own tensor differently adds up to its gradient; what
they all do alike counts once. So all-gather is followed by work that differs from rank to rank (its gradients are
summed), and join, which moves the same bytes, by work that does not (each keeps its part of the gradient).

Backward is a collective too: every rank must take part, so `x` requires a gradient on all ranks or on none. That goes
for `broadcast` and `scatter` as well: the others' `x`, of which nothing is used, requires one as the root's does.

Nothing here is in place. Shoeybi et al. 2019, "Megatron-LM", sec. 3; Korthikanti et al. 2022, "Reducing activation
recomputation in large transformer models", sec. 4.2.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from . import all_to_all as exchanges
from . import gather as gathers
from . import reduce as reduces
from . import scatter as scatters
from .fast import select

Map = Callable[[Tensor], Tensor]


class Conjugate(Function):
    """A linear map between ranks on the way there, its conjugate on the way back. Differentiable any number of times.

    `Conjugate.apply(x, there, back)` is `there(x)`; its gradient is `back` of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Map, back: Map) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return Conjugate.apply(gradient, ctx.back, ctx.there), None, None


def copy(x: Tensor, group: ProcessGroup) -> Tensor:
    """`x`, the same on every rank; its gradient is the sum of every rank's."""
    return Conjugate.apply(x, _same, lambda gradient: _sum(gradient, group))


def all_reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of every rank's `x`; the gradient of the sum, the same on every rank, is that of each `x`."""
    return Conjugate.apply(x, lambda x: _sum(x, group), _same)


def all_gather(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """Every rank's `x` side by side along `dim`, for work that differs from rank to rank."""
    return Conjugate.apply(x, lambda x: _gather_all(x, group, dim), lambda gradient: _sum_part(gradient, group, dim))


def reduce_scatter(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """This rank's part along `dim` of the sum of every rank's `x`. x.shape[dim] divides by the number of ranks."""
    return Conjugate.apply(x, lambda x: _sum_part(x, group, dim), lambda gradient: _gather_all(gradient, group, dim))


def split(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """This rank's part along `dim` of `x`, the same on every rank. x.shape[dim] divides by the number of ranks."""
    return Conjugate.apply(x, lambda x: _part(x, group, dim), lambda gradient: _gather_all(gradient, group, dim))


def join(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """Every rank's `x` side by side along `dim`, for work that is the same on every rank."""
    return Conjugate.apply(x, lambda x: _gather_all(x, group, dim), lambda gradient: _part(gradient, group, dim))


def all_to_all(x: Tensor, group: ProcessGroup, split_dim: int = 0, join_dim: int = 0) -> Tensor:
    """Cut `x` along `split_dim`, part j for rank j, and put what came side by side along `join_dim`."""
    return Conjugate.apply(
        x,
        lambda x: _transpose(x, group, split_dim, join_dim),
        lambda gradient: _transpose(gradient, group, join_dim, split_dim),
    )


def all_to_all_uneven(x: Tensor, in_splits: list[int], out_splits: list[int], group: ProcessGroup) -> Tensor:
    """Send in_splits[j] rows to rank j and receive out_splits[i] rows from rank i."""
    return Conjugate.apply(
        x,
        lambda x: _send_rows(x, in_splits, out_splits, group),
        lambda gradient: _send_rows(gradient, out_splits, in_splits, group),
    )


def broadcast(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """The root's `x`. The others pass a tensor of the same shape, whose gradient is zero."""
    return Conjugate.apply(x, lambda x: _from_root(x, root, group), lambda gradient: _to_root(gradient, root, group))


def reduce(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """The sum of every rank's `x` on the root, zeros elsewhere."""
    return Conjugate.apply(x, lambda x: _to_root(x, root, group), lambda gradient: _from_root(gradient, root, group))


def scatter(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """Row i of the root's `x` for rank i. The others pass a tensor of the same shape, whose gradient is zero."""
    return Conjugate.apply(x, lambda x: _row(x, root, group), lambda gradient: _rows(gradient, root, group))


def gather(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    """Every rank's `x` as the n rows of a tensor on the root, zeros elsewhere."""
    return Conjugate.apply(x, lambda x: _rows(x, root, group), lambda gradient: _row(gradient, root, group))


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _sum(x: Tensor, group: ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    select.all_reduce(total, group)
    return total


def _gather_all(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    out = rows.new_empty(group.size() * rows.shape[0], *rows.shape[1:])
    select.all_gather(rows, out, group)
    return out.movedim(0, dim)


def _sum_part(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    rows = x.movedim(dim, 0).contiguous()
    out = rows.new_empty(_share(rows.shape[0], group), *rows.shape[1:])
    select.reduce_scatter(rows, out, group)
    return out.movedim(0, dim)


def _part(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    share = _share(x.shape[dim], group)
    return x.narrow(dim, group.rank() * share, share).clone()


def _transpose(x: Tensor, group: ProcessGroup, split_dim: int, join_dim: int) -> Tensor:
    _share(x.shape[split_dim], group)
    parts = torch.stack(x.tensor_split(group.size(), split_dim)).contiguous()
    out = torch.empty_like(parts)
    select.all_to_all(parts, out, group)
    return torch.cat(out.unbind(), join_dim)


def _send_rows(x: Tensor, in_splits: list[int], out_splits: list[int], group: ProcessGroup) -> Tensor:
    out = x.new_empty(sum(out_splits), *x.shape[1:])
    exchanges.uneven(x.contiguous(), out, in_splits, out_splits, group)
    return out


def _from_root(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    select.broadcast(out, root, group)
    return out


def _to_root(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    reduces.tree(total, root, group)
    return total if group.rank() == root else torch.zeros_like(total)


def _row(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[1:])
    scatters.tree(out, x.contiguous() if group.rank() == root else None, root, group)
    return out


def _rows(x: Tensor, root: int, group: ProcessGroup) -> Tensor:
    out = x.new_zeros(group.size(), *x.shape)
    gathers.tree(x.contiguous(), out if group.rank() == root else None, root, group)
    return out


def _share(length: int, group: ProcessGroup) -> int:
    """How much of a dimension falls to one rank.

    Raises:
        ValueError: it does not divide.
    """
    share, left = divmod(length, group.size())
    if left:
        raise ValueError(f"a dimension of {length} does not divide among {group.size()} ranks")
    return share

"""Gradients through collectives are those of one process that holds all ranks' tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives import differentiable as d

from .conftest import in_group

Tensors = list[Tensor]


@dataclass(frozen=True)
class Map:
    """A collective as ranks call it, and as one process would write it.

    `same_in`, `same_out`: all ranks bring, or get, one and the same tensor; it counts once.
    """

    call: Callable[[Tensor, dist.ProcessGroup], Tensor]
    oracle: Callable[[Tensors], Tensors]
    same_in: bool = False
    same_out: bool = False


def everywhere(total: Callable[[Tensors], Tensor]) -> Callable[[Tensors], Tensors]:
    """The same value for every rank."""
    return lambda xs: [total(xs)] * len(xs)


def parts(dim: int, total: Callable[[Tensors], Tensor]) -> Callable[[Tensors], Tensors]:
    """A part along `dim` for each rank."""
    return lambda xs: list(total(xs).tensor_split(len(xs), dim))


def last(group: dist.ProcessGroup) -> int:
    """The root of those that have one."""
    return group.size() - 1


def at_last(total: Callable[[Tensors], Tensor]) -> Callable[[Tensors], Tensors]:
    """A value on the last rank, zeros elsewhere."""
    return lambda xs: [torch.zeros_like(total(xs)) for _ in xs[1:]] + [total(xs)]


def transposed(split_dim: int, join_dim: int) -> Callable[[Tensors], Tensors]:
    """Part j of rank i becomes part i of rank j."""
    return lambda xs: [
        torch.cat(column, join_dim) for column in zip(*(x.tensor_split(len(xs), split_dim) for x in xs), strict=True)
    ]


def rows(rank: int, n: int) -> list[int]:
    """How many rows a rank sends to each in the uneven case; x has 2n of them."""
    return [2 * n] if n == 1 else [2 * n - 1 if i == (rank + 1) % n else int(i == rank) for i in range(n)]


def uneven(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    return d.all_to_all_uneven(x, rows(rank, n), [rows(i, n)[rank] for i in range(n)], group)


def uneven_oracle(xs: Tensors) -> Tensors:
    n = len(xs)
    return [torch.cat([x.split(rows(i, n))[rank] for i, x in enumerate(xs)]) for rank in range(n)]


MAPS = {  # of tensors of shape [2n, 2n, 3, 2], and others
    "copy": Map(d.copy, list, same_in=True),
    "all_reduce": Map(d.all_reduce, everywhere(sum), same_out=True),
    "all_gather": Map(partial(d.all_gather, dim=1), everywhere(lambda xs: torch.cat(xs, 1))),
    "reduce_scatter": Map(partial(d.reduce_scatter, dim=1), parts(1, sum)),
    "split": Map(partial(d.split, dim=1), parts(1, lambda xs: xs[0]), same_in=True),
    "join": Map(partial(d.join, dim=1), everywhere(lambda xs: torch.cat(xs, 1)), same_out=True),
    "all_to_all": Map(partial(d.all_to_all, split_dim=0, join_dim=1), transposed(0, 1)),
    "all_to_all_uneven": Map(uneven, uneven_oracle),
    "broadcast": Map(lambda x, group: d.broadcast(x, last(group), group), everywhere(lambda xs: xs[-1])),
    "reduce": Map(lambda x, group: d.reduce(x, last(group), group), at_last(sum)),
    "scatter": Map(
        lambda x, group: d.scatter(x[: len(x) // 2], last(group), group), lambda xs: list(xs[-1][: len(xs)])
    ),
    "gather": Map(lambda x, group: d.gather(x, last(group), group), at_last(torch.stack)),
}


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def derivatives(xs: Tensors, ys: Tensors, same_out: bool, ranks: list[int]) -> tuple[Tensors, Tensors]:
    """Gradients of a loss of `ys` by `xs`, and the gradients of a function of those: first and second order."""
    loss = sum((random(y.shape, 0 if same_out else rank) * y**3).sum() for rank, y in zip(ranks, ys, strict=True))
    first = torch.autograd.grad(loss, xs, create_graph=True, materialize_grads=True)
    again = sum((random(g.shape, 7) * g).sum() for g in first)
    return [g.detach() for g in first], list(torch.autograd.grad(again, xs, materialize_grads=True))


LAYOUTS: dict[str, tuple[tuple[int, int], Callable[[Tensor], Tensor]]] = {  # last two dimensions; in memory
    "contiguous": ((3, 2), lambda x: x),
    "channels last": ((3, 2), lambda x: x.to(memory_format=torch.channels_last)),
    "transposed": ((3, 2), lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
    "empty": ((0, 2), lambda x: x),
}


def values(n: int, layout: str, seed: int) -> Tensor:
    """What a rank brings."""
    shape, placed = LAYOUTS[layout]
    return placed(random((2 * n, 2 * n, *shape), seed)).requires_grad_()


def on_rank(group: dist.ProcessGroup, name: str, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative on this rank."""
    rank, kind = group.rank(), MAPS[name]
    x = values(group.size(), layout, 100 if kind.same_in else 100 + rank)
    y = kind.call(x, group)
    (first,), (second,) = derivatives([x], [y], kind.same_out, [rank])
    return y.detach(), first, second


def in_one_process(name: str, n: int, layout: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The same for all ranks."""
    kind = MAPS[name]
    seeds = [100] if kind.same_in else range(100, 100 + n)
    xs = [values(n, layout, seed) for seed in seeds]
    ys = kind.oracle(xs * n if kind.same_in else xs)
    counted = [0] if kind.same_out else list(range(n))
    first, second = derivatives(xs, [ys[rank] for rank in counted], kind.same_out, counted)
    if kind.same_in:
        first, second = first * n, second * n
    return [(y.detach(), *both) for y, *both in zip(ys, first, second, strict=True)]


@pytest.mark.parametrize(
    ("n", "layout"), [(1, "contiguous"), (2, "contiguous"), (4, "contiguous"), *((3, each) for each in LAYOUTS)]
)
@pytest.mark.parametrize("name", MAPS)
def test_values_and_derivatives(ranks: Cluster, name: str, n: int, layout: str) -> None:
    found = [each for each in ranks.run(in_group, n, on_rank, name, layout) if each]
    expected = in_one_process(name, n, layout)
    for got, want in zip(found, expected, strict=True):
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert layout == "empty" or any(second.abs().sum() > 0 for _, _, second in expected)


def test_a_dimension_of_nothing_comes_back_as_nothing(clusters: Callable[..., Cluster]) -> None:
    def there_and_back() -> tuple[torch.Size, torch.Size]:
        x = torch.ones(4, 0).requires_grad_()
        y = d.all_to_all(x, dist.group.WORLD, split_dim=0, join_dim=1)
        y.sum().backward()
        return y.shape, x.grad.shape

    assert clusters(2).run(there_and_back) == [((2, 0), (4, 0))] * 2


def does_not_divide(name: str) -> str:
    """What is said about five rows on two ranks."""
    try:
        getattr(d, name)(torch.ones(5, 2), dist.group.WORLD)
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("name", ["split", "reduce_scatter", "all_to_all"])
def test_parts_must_be_alike(clusters: Callable[..., Cluster], name: str) -> None:
    assert clusters(2).run(does_not_divide, name) == ["a dimension of 5 does not divide among 2 ranks"] * 2

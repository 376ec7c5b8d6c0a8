"""Where ranks share matrices, too, the gradients of weights can wait, and nothing else does."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.models.ops import Ops, Product
from reference.pipeline_parallel.split_backward import Deferred, DeferredWeightGradients
from reference.sequence_parallel.fast.ring import RingRegion
from reference.sequence_parallel.region import SequenceRegion
from reference.tensor_parallel.ops import TensorParallel
from reference.tensor_parallel.region import Region

Clusters = Callable[..., Cluster]
REGIONS = {"whole tokens": Region, "slices": SequenceRegion, "slices on a ring": RingRegion}
B, S, D, F = 2, 4, 6, 8  # of the whole


def through(ops: Ops, weights: list[nn.Parameter], x: Tensor) -> Tensor:
    """Two column-parallel weights, and a row-parallel one after them."""
    one, other = ops.column_linear(x, *map(Product, weights[:2]))
    return ops.row_linear(one * other, Product(weights[2]))


def both_ways(kind: type[Region], learns: bool) -> dict[str, list[Tensor | None]]:
    """Gradients of the input and the weights: as the region makes them, then split, not asked to wait and asked to."""
    region, generator = kind(dist.group.WORLD), torch.Generator().manual_seed(dist.get_rank())
    shared = torch.Generator().manual_seed(7)
    x = torch.randn(B, S, D, dtype=torch.float64, generator=shared)
    x = region.local_tokens(x)
    shapes = ((F // 2, D), (F // 2, D), (D, F // 2))
    values = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    found = {}

    def gradients(ops: Ops, backward: Callable[[Tensor], None]) -> list[Tensor | None]:
        weights = [nn.Parameter(value.clone()) for value in values]
        given = x.clone().requires_grad_(learns)
        backward(through(ops, weights, given).square().sum())
        return [given.grad, *(weight.grad for weight in weights)]

    ops = TensorParallel(region)
    found["whole"] = gradients(ops, Tensor.backward)
    split = Deferred(ops, deferred := DeferredWeightGradients())
    found["not asked to wait"] = gradients(split, Tensor.backward)

    def in_halves(loss: Tensor) -> None:
        with deferred.defer("key"):
            loss.backward()
        deferred.compute("key")

    found["halves"] = gradients(split, in_halves)
    return found


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("kind", REGIONS)
def test_both_halves_are_backward(clusters: Clusters, kind: str, learns: bool) -> None:
    """Products of the same numbers; rings add up in another order, which costs 1e-16."""
    for found in clusters(2).run(both_ways, REGIONS[kind], learns):
        for name in ("not asked to wait", "halves"):
            for mine, expected in zip(found[name], found["whole"], strict=True):
                if expected is None:
                    assert mine is None and not learns
                else:
                    torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-14, msg=name)


def what_waits(kind: type[Region]) -> tuple[bool, list[bool]]:
    """Whether the input's gradient is there after the first half, and which of the weights'."""
    region, deferred = kind(dist.group.WORLD), DeferredWeightGradients()
    x = region.local_tokens(torch.ones(B, S, D)).requires_grad_()
    weights = [nn.Parameter(torch.ones(shape)) for shape in ((F // 2, D), (F // 2, D), (D, F // 2))]
    with deferred.defer("key"):
        through(Deferred(TensorParallel(region), deferred), weights, x).sum().backward()
    there = [weight.grad is not None for weight in weights]
    deferred.compute("key")
    return x.grad is not None, there


@pytest.mark.parametrize("kind", REGIONS)
def test_weights_wait_and_the_input_does_not(clusters: Clusters, kind: str) -> None:
    assert clusters(2).run(what_waits, REGIONS[kind]) == [(True, [False] * 3)] * 2


def test_a_frozen_weight_gets_nothing(clusters: Clusters) -> None:
    def gradient() -> tuple[Tensor | None, bool]:
        ops = Deferred(TensorParallel(Region(dist.group.WORLD)), DeferredWeightGradients())
        frozen = nn.Parameter(torch.ones(2, D), requires_grad=False)
        x = torch.ones(B, S, D, requires_grad=True)
        (y,) = ops.column_linear(x, Product(frozen))
        y.sum().backward()
        return frozen.grad, x.grad is not None

    assert clusters(2).run(gradient) == [(None, True)] * 2

"""The norm of all gradients is that of one long vector, however it is cut, and clipping by it keeps the direction."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel.norm import clip, gradient_norm
from reference.errors import BadInput
from reference.trace import Op

Clusters = Callable[..., Cluster]
SHAPES = ((7, 3), (5,), (), (2, 2, 2))


def gradients(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def whole() -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients()])


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-3)])
def test_it_is_the_norm_of_one_long_vector(dtype: torch.dtype, error: float) -> None:
    """Rounding each of 35 numbers to 8 bits of mantissa, 1 part in 256, moves their norm by less than 2e-3."""
    norm = gradient_norm(gradients(dtype))
    assert norm.dtype is torch.float64
    assert float(norm) == pytest.approx(float(whole().norm()), rel=error)


def test_a_million_small_numbers_in_bfloat16_are_not_lost() -> None:
    """Added up in bfloat16, the sum would stall at 256 times the square of one."""
    many = torch.full((1 << 20,), 0.5, dtype=torch.bfloat16)
    assert float(gradient_norm([many])) == pytest.approx(512.0, rel=1e-6)


def test_parameters_without_a_gradient_count_zero() -> None:
    assert gradient_norm([None, *gradients(), None]) == gradient_norm(gradients())
    assert gradient_norm([None]) == gradient_norm([]) == 0.0


@pytest.mark.parametrize("limit", [0.01, 1.0, 1e9])
def test_clipping_is_that_of_torch(limit: float) -> None:
    parameters = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]
    for parameter, gradient in zip(parameters, gradients(), strict=True):
        parameter.grad = gradient
    ours = gradients()
    clip([None, *ours], gradient_norm(ours), limit)
    nn.utils.clip_grad_norm_(parameters, limit)
    for parameter, gradient in zip(parameters, ours, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-14, atol=0)


def test_a_gradient_of_zeros_stays_zero() -> None:
    zeros = torch.zeros(3)
    clip([zeros], gradient_norm([zeros]), 1.0)
    assert torch.equal(zeros, torch.zeros(3))


@pytest.mark.parametrize(("number", "expected"), [(math.inf, [0.0, math.nan]), (math.nan, [math.nan, math.nan])])
def test_what_is_not_finite_does_not_go_unnoticed(number: float, expected: list[float]) -> None:
    broken = torch.tensor([1.0, number])
    assert not math.isfinite(gradient_norm([broken]))
    clip([broken], gradient_norm([broken]), 1.0)
    torch.testing.assert_close(broken, torch.tensor(expected), equal_nan=True)


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_limit_is_not_negative(limit: float) -> None:
    with pytest.raises(BadInput, match=rf"to a norm of 0 or more, not {limit}"):
        clip([torch.ones(1)], torch.ones(()), limit)


def clipped_shards(limit: float, emptied: int | None) -> tuple[Tensor, Tensor]:
    """Norm and clipped shard on this rank, which has every n-th part; rank `emptied` has nothing."""
    rank, n = dist.get_rank(), dist.get_world_size()
    ranks = [each for each in range(n) if each != emptied]
    shard = None if rank == emptied else whole().tensor_split(len(ranks))[ranks.index(rank)].clone()
    norm = gradient_norm([shard], [dist.group.WORLD])
    clip([shard], norm, limit)
    return norm, torch.empty(0) if shard is None else shard


@pytest.mark.parametrize("emptied", [None, 1])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_shards_are_clipped_as_the_whole_is(clusters: Clusters, n: int, emptied: int | None) -> None:
    results, trace = clusters(n).trace(clipped_shards, 0.5, emptied)
    expected = whole()
    clip([expected], expected.norm(), 0.5)
    got = torch.cat([shard.double() for _, shard in results])
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)
    assert len({float(norm) for norm, _ in results}) == 1
    assert all([(e.op, e.bytes) for e in events] == [(Op.ALL_REDUCE, 8)] for events in trace.events)

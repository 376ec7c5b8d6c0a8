"""A region's borders: what is gathered and what is added up, and that each is the backward of the other."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.sequence_parallel import RingRegion, SequenceRegion
from reference.sequence_parallel.plain import scatter
from reference.tensor_parallel import Region

from .conftest import EXACT, far, normal, on

BATCH, EACH, WIDTH = 3, 2, 5  # sequences, tokens of a rank in each, features
KINDS = {
    "tensor": Region,
    "tensor, overlapping": partial(Region, overlap=True),
    "sequence": SequenceRegion,
    "sequence, overlapping": partial(SequenceRegion, overlap=True),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
sizes = pytest.mark.parametrize("t", range(1, 9))


def everybodys(name: str, t: int) -> list[Tensor]:
    """For each rank all tokens, with numbers of its own."""
    return [normal(f"{name} {rank}", BATCH, EACH * t, WIDTH) for rank in range(t)]


def gathered_own(group: ProcessGroup, make: type[Region], whole: Tensor) -> Tensor:
    region = make(group)
    return region.start_gather(region.local_tokens(whole))()


@sizes
@kinds
def test_what_all_have_outside_is_gathered_to_the_whole(ranks: Cluster, make: type[Region], t: int) -> None:
    whole = normal("tokens", BATCH, EACH * t, WIDTH)
    assert all(torch.equal(found, whole) for found in on(ranks, t, gathered_own, make, whole))


def summed(group: ProcessGroup, make: type[Region], inside: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What comes out, and what should."""
    region = make(group)
    return region.start_sum(inside[region.rank].clone())(), region.local_tokens(sum(inside))


@sizes
@kinds
def test_what_all_make_inside_is_added_up(ranks: Cluster, make: type[Region], t: int) -> None:
    assert all(far(*both) < EXACT for both in on(ranks, t, summed, make, everybodys("inside", t)))


def products(group: ProcessGroup, make: type[Region], outside: Tensor, inside: list[Tensor]) -> tuple[float, float]:
    region = make(group)
    x, y = region.local_tokens(outside), inside[region.rank]
    gathered, summed = region.start_gather(x)(), region.start_sum(y.clone())()
    return float((gathered * y).sum()), float((x * summed).sum()) / (1 if region.slices_tokens else region.ranks)


@sizes
@kinds
def test_gather_and_sum_are_conjugate(ranks: Cluster, make: type[Region], t: int) -> None:
    """<gather(x), y> = <x, sum(y)>, each added up over the ranks. What is the same on all ranks counts once."""
    outside, inside = normal("outside", BATCH, EACH * t, WIDTH), everybodys("inside", t)
    gathers, sums = zip(*on(ranks, t, products, make, outside, inside), strict=True)
    assert sum(gathers) == pytest.approx(sum(sums), rel=EXACT)


def left(group: ProcessGroup, make: type[Region], inside: list[Tensor], gradient: Tensor) -> Tensor:
    region = make(group)
    x = inside[region.rank].clone().requires_grad_()
    region.reduce_output(x).backward(region.local_tokens(gradient))
    return x.grad


@sizes
@kinds
def test_the_gradient_of_leaving_is_gathered(ranks: Cluster, make: type[Region], t: int) -> None:
    gradient = normal("gradient", BATCH, EACH * t, WIDTH)
    assert all(torch.equal(found, gradient) for found in on(ranks, t, left, make, everybodys("inside", t), gradient))


def own_of_tokens(group: ProcessGroup, tokens: Tensor) -> Tensor:
    return SequenceRegion(group).local_tokens(tokens)


def test_tokens_without_features_are_cut_by_the_same_dim(ranks: Cluster) -> None:
    tokens = torch.arange(12).view(2, 6)
    assert [own.tolist() for own in on(ranks, 3, own_of_tokens, tokens)] == [
        [[0, 1], [6, 7]],
        [[2, 3], [8, 9]],
        [[4, 5], [10, 11]],
    ]


def refusals(group: ProcessGroup, tokens: int) -> set[str]:
    """What each thing that needs a sequence that divides says to one that does not."""
    x, weight = torch.zeros(2, tokens, WIDTH), torch.zeros(4, WIDTH)
    plain, ring = SequenceRegion(group), RingRegion(group)
    said = set()
    for call in (
        plain.start_sum,
        plain.local_tokens,
        plain.reduce_output,
        lambda x: plain.row_linear(x, weight),
        lambda x: ring.row_linear(x, weight),
        lambda x: scatter(x, group),
    ):
        with pytest.raises(BadInput) as caught:
            call(x)
        said.add(str(caught.value))
    return said


@pytest.mark.parametrize(("tokens", "fitting"), [(10, "9 or 12"), (2, "3"), (4, "3 or 6")])
def test_a_sequence_that_does_not_divide_is_refused_in_one_line(ranks: Cluster, tokens: int, fitting: str) -> None:
    line = f"a sequence of {tokens} tokens does not divide among 3 ranks; {fitting} would do"
    assert on(ranks, 3, refusals, tokens) == [{line}] * 3

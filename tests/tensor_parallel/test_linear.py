"""Parallel linear layers are the whole layer: forward, backward, bias, joined and split features, frozen parts."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives.communicator import Native
from reference.collectives.differentiable import all_reduce
from reference.errors import BadInput
from reference.sequence_parallel import SequenceRegion
from reference.sequence_parallel.fast.ring import RingRegion
from reference.tensor_parallel import ColumnParallelLinear, Region, RowParallelLinear
from reference.trace import Op

from ..data_parallel.conftest import in_group, members
from ..data_parallel.traffic import cut

EXACT = 1e-12  # float64
RANKS = (1, 2, 3, 4, 6, 8)
REGIONS = (Region, SequenceRegion)
B, S, D, F = 2, 24, 5, 24  # sizes that divide by all of RANKS, and one that need not
Regions = type[Region]


def random(*shape: int, seed: int = 0) -> Tensor:
    """The same on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole_layer(inside: int, outside: int, bias: bool) -> nn.Linear:
    """The same on every rank."""
    layer = nn.Linear(inside, outside, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed))
    return layer


def part(x: Tensor | None, region: Region, dim: int) -> Tensor | None:
    """This rank's of t equal parts."""
    return None if x is None else x.chunk(region.ranks, dim)[region.rank]


@dataclass(frozen=True)
class Difference:
    """The largest absolute differences from the whole layer."""

    y: float
    x: float  # of its gradient, and those of
    weight: float
    bias: float

    @property
    def worst(self) -> float:
        return max(self.y, self.x, self.weight, self.bias)


def far(mine: Tensor | None, whole: Tensor | None) -> float:
    if mine is None or whole is None:
        return 0.0 if mine is whole else float("inf")
    assert mine.shape == whole.shape
    return float((mine - whole).abs().max())


def columns(group: ProcessGroup, regions: Regions, overlap: bool, bias: bool, join: bool) -> Difference:
    """A column-parallel layer beside a whole one; what comes after it weighs every output differently."""
    region, layer = regions(group, overlap), whole_layer(D, F, bias)
    split = ColumnParallelLinear(layer, region, join)
    x = random(B, S, D, seed=2).requires_grad_()
    own = region.local_tokens(x.detach()).clone().requires_grad_()
    y, expected, upstream = split(own), layer(x), random(B, S, F, seed=3)
    (y * (upstream if join else part(upstream, region, -1))).sum().backward()
    expected.backward(upstream)
    return Difference(
        far(y, expected if join else part(expected, region, -1)),
        far(own.grad, region.local_tokens(x.grad)),
        far(split.weight.grad, part(layer.weight.grad, region, 0)),
        far(split.bias.grad if bias else None, part(layer.bias.grad, region, 0) if bias else None),
    )


def rows(group: ProcessGroup, regions: Regions, overlap: bool, bias: bool, split: bool) -> Difference:
    """A row-parallel layer beside a whole one."""
    region, layer = regions(group, overlap), whole_layer(F, D, bias)
    parallel = RowParallelLinear(layer, region, split)
    x = random(B, S, F, seed=2).requires_grad_()
    own = (x if split else part(x, region, -1)).detach().clone().requires_grad_()
    y, expected, upstream = parallel(own), layer(x), random(B, S, D, seed=3)
    y.backward(region.local_tokens(upstream))
    expected.backward(upstream)
    of_bias = parallel.bias.grad if bias else None
    if bias and region.slices_tokens:
        dist.all_reduce(of_bias, group=group)  # each rank added it to other tokens
    return Difference(
        far(y, region.local_tokens(expected)),
        far(own.grad, x.grad if split else part(x.grad, region, -1)),
        far(parallel.weight.grad, part(layer.weight.grad, region, 1)),
        far(of_bias, layer.bias.grad if bias else None),
    )


def every_way(group: ProcessGroup, layer: Callable[..., Difference]) -> dict[tuple, Difference]:
    """Regions, with and without overlap, bias, and joined or split features."""
    both = (False, True)
    ways = [(*way, bias, side) for way in ((r, o) for r in REGIONS for o in both) for bias in both for side in both]
    return {way: layer(group, *way) for way in ways}


@pytest.mark.parametrize("t", RANKS)
@pytest.mark.parametrize("layer", [columns, rows])
def test_a_parallel_layer_is_the_whole_layer(ranks: Cluster, layer: Callable[..., Difference], t: int) -> None:
    results = ranks.run(in_group, t, every_way, layer)
    assert [way for rank in members(t) for way, found in results[rank].items() if found.worst > EXACT] == []


class BiasWithin(RowParallelLinear):
    """What one must not do: every rank adds the bias to its part of the sum."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, F / t] -> [B, S, D]."""
        return all_reduce(x @ self.weight.T + self.bias, self.region.group)


def off_by(group: ProcessGroup, kind: type[RowParallelLinear]) -> float:
    """How many biases too many there are in what a row-parallel layer makes."""
    region, layer = Region(group), whole_layer(F, D, bias=True)
    x = random(B, S, F, seed=2)
    extra = kind(layer, region)(part(x, region, -1)) - layer(x)
    return float((extra / layer.bias).mean())


@pytest.mark.parametrize("t", [2, 4])
def test_a_bias_is_added_once(ranks: Cluster, t: int) -> None:
    """And t times where it is added before the sum."""
    for kind, times in ((RowParallelLinear, 0), (BiasWithin, t - 1)):
        results = ranks.run(in_group, t, off_by, kind)
        assert all(abs(results[rank] - times) < EXACT for rank in members(t))


def one_after_the_other(group: ProcessGroup, regions: Regions) -> float:
    """A two-layer perceptron: columns, a gelu, rows."""
    region, up, down = regions(group), whole_layer(D, F, bias=True), whole_layer(F, D, bias=True)
    x = random(B, S, D, seed=4).requires_grad_()
    own = region.local_tokens(x.detach()).clone().requires_grad_()
    y = RowParallelLinear(down, region)(nn.functional.gelu(ColumnParallelLinear(up, region)(own)))
    expected = down(nn.functional.gelu(up(x)))
    y.square().sum().backward()
    expected.square().sum().backward()
    return max(
        far(y, region.local_tokens(expected)), far(own.grad, region.local_tokens(x.grad)) / float(x.grad.abs().max())
    )


@pytest.mark.parametrize("regions", REGIONS)
def test_columns_and_then_rows_need_one_sum(ranks: Cluster, regions: Regions) -> None:
    results = ranks.run(in_group, 4, one_after_the_other, regions)
    assert all(results[rank] < EXACT for rank in members(4))


def left(group: ProcessGroup, regions: Regions, transposed: bool) -> float:
    """`reduce_output` with what each rank made, and its gradient: what lies outside, of all tokens."""
    region = regions(group)
    total, upstream = sum(random(B, S, D, seed=rank) for rank in range(group.size())), random(B, S, D, seed=99)
    made = random(B, S, D, seed=group.rank())
    made = (made.mT.contiguous().mT if transposed else made).requires_grad_()
    out = region.reduce_output(made)
    out.backward(region.local_tokens(upstream))
    return max(far(out, region.local_tokens(total)), far(made.grad, upstream))


@pytest.mark.parametrize("t", RANKS)
def test_what_leaves_a_region_is_summed_once(ranks: Cluster, t: int) -> None:
    """However it lies in memory."""
    for regions, transposed in product(REGIONS, (False, True)):
        results = ranks.run(in_group, t, left, regions, transposed)
        assert all(results[rank] < EXACT for rank in members(t))


def refused(group: ProcessGroup) -> list[str]:
    """What is said of layers whose features cannot be shared out."""
    said = []
    for kind, inside, outside in (
        (ColumnParallelLinear, D, 6),
        (ColumnParallelLinear, D, 3),
        (RowParallelLinear, 6, D),
    ):
        with pytest.raises(BadInput) as error:
            kind(whole_layer(inside, outside, bias=True), Region(group))
        said.append(str(error.value))
    return said


def test_features_that_do_not_divide_are_refused_with_what_would_do(ranks: Cluster) -> None:
    results = ranks.run(in_group, 4, refused)
    for rank in members(4):
        assert results[rank] == [
            "6 output features do not divide among 4 ranks; 4 or 8 would do",
            "3 output features do not divide among 4 ranks; 4 would do",
            "6 input features do not divide among 4 ranks; 4 or 8 would do",
        ]


# What is frozen

FROZEN = ("nothing", "weights", "one weight", "input", "all")


def what_learns(group: ProcessGroup, frozen: str) -> list[list[str]]:
    """Names of the parameters that learn, of a column- and of a row-parallel layer."""
    layer = whole_layer(F, F, bias=True)
    layer.get_parameter(frozen).requires_grad_(False)
    split = (kind(layer, Region(group)) for kind in (ColumnParallelLinear, RowParallelLinear))
    return [[name for name, parameter in own.named_parameters() if parameter.requires_grad] for own in split]


@pytest.mark.parametrize(("frozen", "learns"), [("weight", "bias"), ("bias", "weight")])
def test_the_parts_of_what_is_frozen_are_frozen(ranks: Cluster, frozen: str, learns: str) -> None:
    results = ranks.run(in_group, 2, what_learns, frozen)
    assert all(results[rank] == [[learns], [learns]] for rank in members(2))


def what_is_asked_for(group: ProcessGroup, regions: Regions, frozen: str) -> tuple[list[bool], list[bool]]:
    """Two weights after one input, and one after: which has a gradient, and which inputs of backward were kept."""
    region, kept = regions(Native(group), overlap=True), []
    x, gate, up, down = (random(*shape) for shape in ((B, S, D), (F, D), (F, D), (D, F)))
    x = region.local_tokens(x).clone().requires_grad_(frozen in ("nothing", "weights", "one weight"))
    for weight in (gate, up, down):
        weight.requires_grad_(frozen in ("nothing", "input") or (frozen == "one weight" and weight is not up))

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved.data_ptr())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        gated, passed = region.column_linear(x, gate, up)
        mixed = gated + passed
        y = region.row_linear(mixed, down)
    if y.requires_grad:
        y.sum().backward()
    dist.barrier(group)
    return [z.grad is not None for z in (x, gate, up, down)], [z.data_ptr() in kept for z in (x, mixed)]


@pytest.mark.parametrize("regions", REGIONS)
def test_nothing_is_computed_kept_or_sent_for_what_is_frozen(ranks: Cluster, regions: Regions) -> None:
    """Gathers (forward, again for the weights, after rows) and sums (forward, of the input), frozen what may be."""
    results, trace = ranks.trace(in_group, 2, lambda group: [what_is_asked_for(group, regions, f) for f in FROZEN])
    sums, gathers = (Op.REDUCE_SCATTER, 1) if regions is SequenceRegion else (Op.ALL_REDUCE, 0)
    expected = {  # frozen: gradients of input, gate, up, down; kept inputs; gathers; sums
        "nothing": ([True, True, True, True], [True, True], 3, 2),
        "weights": ([True, False, False, False], [False, False], 2, 2),
        "one weight": ([True, True, False, True], [True, True], 3, 2),
        "input": ([False, True, True, True], [True, True], 3, 1),
        "all": ([False, False, False, False], [False, False], 1, 1),
    }
    for i, (name, one) in enumerate(zip(FROZEN, cut(trace), strict=True)):
        asked, kept, gathered, summed = expected[name]
        for rank in members(2):
            ops = [event.op for event in one.events[rank]]
            assert results[rank][i] == (asked, kept), name
            assert (ops.count(Op.ALL_GATHER), ops.count(sums)) == (gathers * gathered, summed), name


def with_autocast(group: ProcessGroup, regions: Regions) -> float:
    """Two layers in float32, whose products autocast computes in bfloat16, beside whole ones; backward is outside."""
    region, first, second = regions(group), whole_layer(D, F, True).float(), whole_layer(F, D, True).float()
    split = nn.Sequential(ColumnParallelLinear(first, region), nn.Tanh(), RowParallelLinear(second, region))
    x = random(B, S, D, seed=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = split(region.local_tokens(x)), second(torch.tanh(first(x)))
    y.float().square().sum().backward()
    expected.float().square().sum().backward()
    mine, whole = split[0].weight.grad, part(first.weight.grad, region, 0)
    assert mine.dtype == torch.float32
    return float((mine - whole).norm() / whole.norm())


@pytest.mark.parametrize("regions", [*REGIONS, RingRegion])
def test_autocast_is_the_same_in_backward(ranks: Cluster, regions: Regions) -> None:
    """Within the rounding of bfloat16, which sums in another order."""
    assert max(ranks.run(in_group, 2, with_autocast, regions)[rank] for rank in members(2)) < 0.02


def no_grad(group: ProcessGroup) -> bool:
    """Under no_grad nothing is kept."""
    with torch.no_grad():
        (y,) = Region(group).column_linear(random(B, S, D), random(F, D).requires_grad_())
    return y.requires_grad


def test_without_gradients_there_is_no_graph(ranks: Cluster) -> None:
    results = ranks.run(in_group, 2, no_grad)
    assert not any(results[rank] for rank in members(2))

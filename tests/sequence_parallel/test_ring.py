"""Products of slices that travel around a ring: what a region computes, and no byte more."""

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.memory.recompute import Recompute
from reference.memory.saved import saved_tensors, total
from reference.models import GPTConfig
from reference.sequence_parallel import RingRegion, SequenceRegion
from reference.sequence_parallel.fast.ring import all_gather_matmul, matmul_reduce_scatter, passing
from reference.tensor_parallel import Region
from reference.trace import Op

from ..data_parallel.conftest import in_group, members
from ..tensor_parallel.split import split_gpt
from .conftest import EXACT, farthest, normal, on

EACH, WIDTH, HIDDEN = 3, 5, (4, 2)  # tokens of a rank, features outside, features of a rank inside
FROZEN = {"nothing": "", "input": "x", "first column": "a", "columns": "ab", "rows": "c", "input and rows": "xc"}
sizes = pytest.mark.parametrize("t", range(1, 9))
batches = pytest.mark.parametrize("batch", [(1,), (3,), (2, 2), ()], ids=str)


def computed(group: ProcessGroup, make: type[Region], batch: tuple[int, ...], frozen: str = "") -> list[Tensor]:
    """Through a region with two columns and a row: what comes out, and the gradient of all that is not frozen."""
    region, rank = make(group), group.rank()
    shapes = {"x": (*batch, EACH, WIDTH), "a": (HIDDEN[0], WIDTH), "b": (HIDDEN[1], WIDTH), "c": (WIDTH, sum(HIDDEN))}
    given = {
        name: normal(f"{name} of {rank}", *shape).requires_grad_(name not in frozen) for name, shape in shapes.items()
    }
    inside = torch.cat(region.column_linear(given["x"], given["a"], given["b"]), -1)
    y = region.row_linear(inside.sigmoid(), given["c"])
    y.backward(normal(f"gradient {rank}", *y.shape))
    return [y.detach(), inside.detach(), *(one.grad for one in given.values() if one.grad is not None)]


def difference(group: ProcessGroup, batch: tuple[int, ...], frozen: str = "") -> float:
    plain, ring = (computed(group, make, batch, frozen) for make in (SequenceRegion, RingRegion))
    assert len(plain) == len(ring) == 6 - len(frozen)
    return farthest(ring, plain)


@sizes
@batches
def test_it_computes_what_the_plain_region_computes(ranks: Cluster, batch: tuple[int, ...], t: int) -> None:
    """Forward and every gradient."""
    assert max(on(ranks, t, difference, batch)) < EXACT


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_what_is_frozen_has_no_gradient_and_changes_no_other(ranks: Cluster, frozen: str) -> None:
    assert max(on(ranks, 3, difference, (2,), frozen)) < EXACT


def trained_gpt(group: ProcessGroup, make: type[Region], how: Recompute) -> list[Tensor]:
    """This rank's logits of a GPT, and gradients of its parameters."""
    model, _ = split_gpt(GPTConfig(2, 12, 3, 3, 9, vocabulary=17), make(group), how)
    logits = model(torch.arange(2 * 6).view(2, 6))
    logits.backward(normal(f"gradient {group.rank()}", *logits.shape))
    return [logits.detach(), *(parameter.grad for parameter in model.parameters())]


def difference_of_gpts(group: ProcessGroup, how: Recompute) -> float:
    return farthest(*(trained_gpt(group, make, how) for make in (RingRegion, SequenceRegion)))


@pytest.mark.parametrize("how", Recompute)
def test_a_gpt_in_a_ring_is_the_gpt_in_a_sequence_region(ranks: Cluster, how: Recompute) -> None:
    """Whatever is recomputed: then slices travel in backward once more."""
    assert max(on(ranks, 3, difference_of_gpts, how)) < 10 * EXACT  # two blocks of ten operations each, there and back


def by_themselves(group: ProcessGroup) -> float:
    """The two plain functions, of tensors that do not lie in order."""
    region, rank = SequenceRegion(group), group.rank()
    outside = normal(f"x of {rank}", EACH, WIDTH, 2).movedim(-1, 0)
    inside = normal(f"y of {rank}", 2, HIDDEN[0], EACH * region.ranks).transpose(1, 2)
    weight = normal(f"weight of {rank}", HIDDEN[0], WIDTH)
    (gathered,) = all_gather_matmul(outside, [weight], group)
    summed = matmul_reduce_scatter(inside, weight.T, group)
    expected = region.start_gather(outside)() @ weight.T, region.start_sum(inside @ weight)()
    return farthest((gathered, summed), expected)


@sizes
def test_each_half_is_a_collective_and_a_product(ranks: Cluster, t: int) -> None:
    assert max(on(ranks, t, by_themselves)) < EXACT


def order(group: ProcessGroup) -> list[tuple[int, float]]:
    return [(owner, slice.item()) for owner, slice in passing(torch.tensor([float(group.rank())]), group)]


def test_slices_come_from_the_left_ones_own_first(ranks: Cluster) -> None:
    assert on(ranks, 4, order)[1] == [(1, 1.0), (0, 0.0), (3, 3.0), (2, 2.0)]


@sizes
def test_it_sends_what_the_plain_region_sends(ranks: Cluster, t: int) -> None:
    """Two gathers and two sums of a columns' and a row's forward and backward, and the columns' second gather."""
    plain, ring = (
        ranks.trace(in_group, t, computed, make, (2,))[1].bytes_sent for make in (SequenceRegion, RingRegion)
    )
    assert plain == ring
    assert ring[members(t)[0]] == 5 * (t - 1) * 8 * 2 * EACH * WIDTH


@pytest.mark.parametrize("t", [2, 5])
def test_everything_goes_to_the_right(ranks: Cluster, t: int) -> None:
    _, trace = ranks.trace(in_group, t, computed, RingRegion, (2,))
    ring = members(t)
    for place, rank in enumerate(ring):
        sends = [event for event in trace.events[rank] if event.op is Op.SEND]
        assert {event.peer for event in sends} == {ring[(place + 1) % t]}
        assert len(sends) == 5 * (t - 1)


def kept(group: ProcessGroup, make: type[Region]) -> int:
    x, weights = normal("x", 2, EACH, WIDTH).requires_grad_(), [normal("a", HIDDEN[0], WIDTH).requires_grad_()]
    return total(saved_tensors(lambda: make(group).column_linear(x, *weights), but=weights))


def test_what_went_by_is_not_kept(ranks: Cluster) -> None:
    """The slice alone waits for backward."""
    assert on(ranks, 4, kept, RingRegion) == [8 * 2 * EACH * WIDTH] * 4


def in_bfloat16(group: ProcessGroup) -> float:
    x, weight = normal("x", 2, EACH * group.size(), WIDTH), normal("weight", WIDTH, WIDTH)
    mine = matmul_reduce_scatter(x.bfloat16(), weight.bfloat16(), group).double()
    return farthest([mine], [SequenceRegion(group).local_tokens(group.size() * x @ weight.T)])


def test_low_precision_stays_what_it_is(ranks: Cluster) -> None:
    """Two operands and a product are rounded to 2^-9, and so are four sums: at most 7 in all."""
    assert max(on(ranks, 4, in_bfloat16)) < 7 * 2**-9

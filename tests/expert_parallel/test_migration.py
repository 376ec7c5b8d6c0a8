"""Experts that move between steps train as if they had stayed in one process."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.collectives.communicator import ByHand
from reference.collectives.default import over
from reference.errors import BadInput
from reference.expert_parallel.migration import ExpertMove, migrate, migrate_optimizer, moves_between, sum_copies
from reference.expert_parallel.placement import ExpertPlacement, in_order, place, place_by_node
from reference.expert_parallel.plain import mixture

from ..sequence_parallel.conftest import normal

RANKS, EXPERTS, WIDTH, FEATURES, TOKENS, TOP_K = 4, 6, 3, 5, 7, 2
STEPS, DOUBLE = 5, 8
LOADS = [50, 3, 20, 1, 7, 30]
PLACEMENTS = [  # one for each step: other ranks and other copies
    in_order(LOADS, RANKS, 12),
    place(LOADS, RANKS, 12),
    place_by_node([*reversed(LOADS)], RANKS, 12, nodes=2, groups=2),
    ExpertPlacement(((0, 0, 5), (0, 0, 1), (2, 3, 4), (4, 4, 5)), tuple(LOADS)),
    place(LOADS, RANKS, 12),
]
OTHERS = [in_order(LOADS, RANKS, 8), place(LOADS, RANKS, 16)]  # with fewer slots, and with more


@pytest.fixture
def four(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(RANKS)


def weights() -> list[Tensor]:
    """Of all experts: [E, F, D] and [E, D, F]."""
    return [normal("up", EXPERTS, FEATURES, WIDTH), normal("down", EXPERTS, WIDTH, FEATURES)]


def batch(step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of all ranks: tokens, what should come out, the experts of each token, and their weights. Expert 3 gets none."""
    x, target = (normal(f"{name} {step}", RANKS * TOKENS, WIDTH) for name in ("x", "target"))
    scores = normal(f"scores {step}", RANKS * TOKENS, EXPERTS)
    scores[:, 3] = -torch.inf
    best = scores.topk(TOP_K)
    return x, target, best.indices, best.values.softmax(-1)


def expert(up: Tensor, down: Tensor, rows: Tensor) -> Tensor:
    return (rows @ up.T).tanh() @ down.T


def in_one_process() -> list[Tensor]:
    parameters = [x.requires_grad_() for x in weights()]
    optimizer = torch.optim.Adam(parameters, lr=0.03, foreach=False)
    for step in range(STEPS):
        x, target, chosen, shares = batch(step)
        made = torch.stack([expert(up, down, x) for up, down in zip(*parameters, strict=True)], dim=1)
        of_choices = made.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        optimizer.zero_grad(set_to_none=False)
        ((of_choices * shares[..., None]).sum(1) - target).square().sum().div(len(x)).backward()
        optimizer.step()
    return [x.detach() for x in parameters]


def on_ranks(by_hand: bool, copies_are_summed: bool = True, moments_move: bool = True) -> list[Tensor]:
    """What this rank's slots are in the end."""
    ranks = ByHand(dist.group.WORLD) if by_hand else over(dist.group.WORLD)
    rank, placed = ranks.rank(), PLACEMENTS[0]
    parameters = [nn.Parameter(x[list(placed.slots[rank])]) for x in weights()]
    optimizer = torch.optim.Adam(parameters, lr=0.03, foreach=False)
    for step, wanted in enumerate(PLACEMENTS):
        if moments_move:
            migrate_optimizer(optimizer, placed, wanted, ranks)
        else:
            found = migrate([x.detach() for x in parameters], placed, wanted, ranks)
            for parameter, moved in zip(parameters, found, strict=True):
                parameter.data.copy_(moved)
                parameter.grad = None
        placed = wanted
        x, target, chosen, shares = (each.chunk(RANKS)[rank] for each in batch(step))
        experts = [partial(expert, up, down) for up, down in zip(*parameters, strict=True)]
        out = mixture(x, placed.slots_for(chosen), shares, experts, dist.group.WORLD)
        (out - target).square().sum().div(RANKS * TOKENS).backward()
        for parameter in parameters:
            if copies_are_summed:
                sum_copies(parameter.grad, placed, ranks)
        optimizer.step()
    return [x.detach() for x in parameters]


def farthest(found: list[list[Tensor]], expected: list[Tensor]) -> float:
    """From one process, of all slots of all ranks."""
    of_slots = list(zip(PLACEMENTS[-1].slots, found, strict=True))
    return max(
        float((own[matrix][slot] - expected[matrix][expert]).abs().max())
        for here, own in of_slots
        for slot, expert in enumerate(here)
        for matrix in range(2)
    )


@pytest.mark.parametrize("by_hand", [False, True])
def test_training_that_moves_its_experts_equals_one_process(four: Cluster, by_hand: bool) -> None:
    found, expected = four.run(on_ranks, by_hand), in_one_process()
    assert farthest(found, expected) < 1e-12
    assert max(float((x - y).abs().max()) for x, y in zip(expected, weights(), strict=True)) > 0.1  # it has learnt


def test_copies_are_the_same_bits(four: Cluster) -> None:
    found = four.run(on_ranks, False)
    rows: dict[int, Tensor] = {}
    for here, own in zip(PLACEMENTS[-1].slots, found, strict=True):
        for slot, number in enumerate(here):
            assert torch.equal(rows.setdefault(number, own[0][slot]), own[0][slot])


def test_copies_that_are_not_summed_are_far_from_one_process(four: Cluster) -> None:
    assert farthest(four.run(on_ranks, False, False), in_one_process()) > 1e-3


def test_moments_that_stay_behind_are_far_from_one_process(four: Cluster) -> None:
    assert farthest(four.run(on_ranks, False, True, False), in_one_process()) > 1e-3


def tensors_of(placement: ExpertPlacement, rank: int) -> list[Tensor]:
    """Of a rank's slots, in several dtypes: the expert, in all elements."""
    here = torch.tensor(placement.slots[rank])
    return [here.to(dtype).view(-1, *[1] * len(shape)).expand(-1, *shape).contiguous() for dtype, shape in SHAPES]


SHAPES = [(torch.float64, (2, 3)), (torch.bfloat16, (3,)), (torch.int64, ()), (torch.float32, (1, 5))]
SLOT = 8 * 6 + 2 * 3 + 8 + 4 * 5  # bytes


def moved(before: ExpertPlacement, after: ExpertPlacement) -> list[Tensor]:
    ranks = over(dist.group.WORLD)
    return migrate(tensors_of(before, ranks.rank()), before, after, ranks)


@pytest.mark.parametrize(("before", "after"), [*pairwise([*PLACEMENTS, *OTHERS]), (PLACEMENTS[1], PLACEMENTS[4])])
def test_a_slot_that_was_not_here_is_received_once_and_no_other(
    four: Cluster, before: ExpertPlacement, after: ExpertPlacement
) -> None:
    found, trace = four.trace(moved, before, after)
    for rank in range(RANKS):
        for got, expected in zip(found[rank], tensors_of(after, rank), strict=True):
            assert torch.equal(got, expected)
            assert got.dtype == expected.dtype
    new = [len(set(after.slots[rank]) - set(before.slots[rank])) for rank in range(RANKS)]
    assert trace.bytes_received == [SLOT * count for count in new]
    assert (sum(new) == 0) == (before == after)


def summed(placement: ExpertPlacement) -> Tensor:
    ranks = over(dist.group.WORLD)
    gradients = torch.arange(2.0) + torch.tensor(placement.slots[ranks.rank()])[:, None]
    sum_copies(gradients, placement, ranks)
    return gradients


@pytest.mark.parametrize("placement", [*PLACEMENTS, *OTHERS])
def test_a_sum_of_copies_takes_a_row_there_and_one_back(four: Cluster, placement: ExpertPlacement) -> None:
    found, trace = four.trace(summed, placement)
    for own, here in zip(found, placement.slots, strict=True):
        expected = [[placement.copies[number] * (number + column) for column in range(2)] for number in here]
        assert own.tolist() == expected
    holders = [len(placement.holders(number)) for number in range(EXPERTS)]
    assert sum(trace.bytes_sent) == 4 * 2 * sum(2 * (count - 1) for count in holders)


def test_an_expert_comes_from_this_rank_or_its_node_or_the_nearest() -> None:
    before = ExpertPlacement(((0, 1), (2, 3), (0, 2), (1, 3)), (1,) * 4)
    after = ExpertPlacement(((0, 1), (0, 1), (0, 3), (2, 3)), (1,) * 4)
    assert moves_between(before, after) == [
        ExpertMove(0, 0, 1),
        ExpertMove(1, 0, 1),
        ExpertMove(3, 1, 2),
        ExpertMove(2, 2, 3),
    ]
    assert moves_between(before, after, ranks_per_node=2)[2] == ExpertMove(3, 3, 2)


def test_placements_of_other_layers_are_refused() -> None:
    one, other = in_order([1] * 4, 2, 4), in_order([1] * 4, 4, 4)
    with pytest.raises(BadInput, match="4 experts on 2 ranks cannot move to a placement of 4 experts on 4"):
        moves_between(one, other)


def refused() -> str:
    ranks, placed = over(dist.group.WORLD), PLACEMENTS[0]
    said = []
    for tensors, placement in (([torch.zeros(2, 1)], placed), ([torch.zeros(2, 1)], in_order([1] * 2, 2, 4))):
        with pytest.raises(BadInput) as error:
            migrate(tensors, placement, placement, ranks)
        said.append(str(error.value))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3, 1))])
    with pytest.raises(BadInput) as error:
        migrate_optimizer(optimizer, placed, OTHERS[0], ranks)
    said.append(str(error.value))
    return "; ".join(said)


def test_tensors_and_ranks_that_are_not_those_of_a_placement_are_refused(four: Cluster) -> None:
    for said in four.run(refused):
        assert said == (
            "a rank has 3 slots, and a tensor of shape (2, 1) has no row for each; "
            "a placement on 2 ranks is none of 4; "
            "parameters have 3 slots on a rank, and cannot become 2"
        )

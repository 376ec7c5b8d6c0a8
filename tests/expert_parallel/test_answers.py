"""The answers to puzzles are what the models do: they route, count and weigh alike."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster, EachRank
from reference.expert_parallel.answers.auxiliary import auxiliary_loss
from reference.expert_parallel.answers.room import room_for
from reference.expert_parallel.answers.route import route_top_k
from reference.expert_parallel.answers.rows import permute_and_come_back
from reference.models import routing
from reference.models.by_expert import add_up, in_order_of_experts
from reference.models.moe_config import Gate, MoEConfig

EXPERTS, TOP_K, TOKENS = 5, 2, (4, 0, 7)  # tokens of three ranks
SIZES = {"layers": 1, "width": 4, "heads": 1, "kv_heads": 1, "hidden": 4, "experts": EXPERTS, "top_k": TOP_K}


def some_logits(tokens: int, seed: int = 0) -> Tensor:
    """Few different numbers, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (tokens, EXPERTS), generator=generator).double()


@pytest.mark.parametrize("gate", list(Gate))
@pytest.mark.parametrize("normalised", [True, False])
def test_routing_is_that_of_the_models(gate: Gate, normalised: bool) -> None:
    config = MoEConfig(**SIZES, gate=gate, normalised=normalised, scale=2.5)
    found = []
    for way in ("answer", "model"):
        logits = some_logits(9).requires_grad_()
        if way == "answer":
            chosen, weights = route_top_k(logits, TOP_K, str(gate), normalised, 2.5)
        else:
            scores = routing.scores_of(logits, config)
            chosen = routing.choose(scores.detach(), config)
            weights = routing.weigh(scores, chosen, config)
        weights[:, 0].square().sum().backward()
        found.append((chosen, weights.detach(), logits.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_rows_go_to_experts_and_come_back_as_in_the_models() -> None:
    x, weights = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    matrices = torch.randn(EXPERTS, 3, 3, dtype=torch.float64)
    chosen = some_logits(6).argsort(-1)[:, :TOP_K]
    chosen[1], chosen[3, 1] = -1, -1

    def compute(rows: Tensor, counts: list[int]) -> Tensor:
        return torch.cat([part @ matrix for part, matrix in zip(rows.split(counts), matrices, strict=True)])

    rows, counts, back = in_order_of_experts(x[None], chosen[None], EXPERTS)
    expected = add_up(back(compute(rows, counts.tolist())), weights[None])[0]
    found = permute_and_come_back(x, chosen, weights, EXPERTS, compute)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def choices(scores: Tensor) -> Tensor:
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :TOP_K]


def on_a_rank(scores: Tensor, capacity: float) -> tuple[Tensor, Tensor]:
    chosen = choices(scores)
    kept = room_for(chosen, EXPERTS, capacity, dist.group.WORLD)
    return kept, auxiliary_loss(scores, chosen, dist.group.WORLD)


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25])
def test_room_and_loss_are_those_of_one_process(clusters: Callable[..., Cluster], capacity: float) -> None:
    whole = some_logits(sum(TOKENS), seed=1).softmax(-1)
    found = clusters(3).run(on_a_rank, EachRank(list(whole.split(TOKENS))), capacity)
    config, chosen = MoEConfig(**SIZES, capacity=capacity), choices(whole)[None]
    kept = torch.cat([each for each, _ in found])
    assert torch.equal(kept, routing.fits(chosen, config)[0])
    assert 0 < kept.sum() < kept.numel() or capacity > 1
    counts, is_token = routing.counts_of(chosen, EXPERTS), torch.ones(len(whole), dtype=torch.bool)
    loss = routing.balance_loss(whole[None], counts, is_token, config, len(whole))
    torch.testing.assert_close(sum(part for _, part in found), loss, rtol=0, atol=1e-12)

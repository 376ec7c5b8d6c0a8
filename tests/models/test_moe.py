"""A mixture of experts without ranks: choices, weights, capacity, losses, and how many numbers it learns."""

import copy
import itertools
from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

from reference.errors import BadInput
from reference.expert_parallel import lift_experts
from reference.memory.recompute import Recompute, recompute
from reference.models import architecture, create, preset, token_loss
from reference.models.grouped import grouped, has_kernel
from reference.models.moe import mixtures_in
from reference.models.moe_config import MIXTURES, Balance, Gate, MoEConfig
from reference.models.routing import (
    NOWHERE,
    balance_loss,
    choose,
    counts_of,
    first_of,
    fits,
    logit_loss,
    room,
    scores_of,
    weigh,
)

SMALL = MoEConfig(2, 16, 4, 2, 24, experts=4, top_k=2, expert_hidden=12, shared_experts=1)


@pytest.mark.parametrize("name", MIXTURES)
def test_parameters_are_counted(name: str) -> None:
    config = preset(name)
    model = create(architecture, config, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
    assert config.parameters > config.active_parameters


def test_mixtral_has_the_published_numbers() -> None:
    """Jiang et al. 2024, sec. 1 and 2.2: 47 B parameters, of which a token meets 13 B."""
    config = preset("mixtral-8x7b")
    assert (round(config.parameters / 1e9, 1), round(config.active_parameters / 1e9, 1)) == (46.7, 12.9)


def test_equal_scores_go_to_the_expert_that_comes_first() -> None:
    scores = torch.tensor([[0.2, 0.3, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]])
    assert choose(scores, SMALL).tolist() == [[1, 2], [0, 1]]
    assert first_of(torch.zeros(300), 3).tolist() == [0, 1, 2]


def test_a_bias_chooses_and_weighs_nothing() -> None:
    scores, bias = torch.tensor([[0.1, 0.2, 0.3, 0.4]]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    chosen = choose(scores, SMALL, bias)
    assert chosen.tolist() == [[0, 3]]
    assert weigh(scores, chosen, SMALL).tolist() == [pytest.approx([0.2, 0.8])]
    assert weigh(scores, chosen, replace(SMALL, normalised=False, scale=2.0)).tolist() == [pytest.approx([0.2, 0.8])]


def test_groups_limit_the_nodes_of_a_token() -> None:
    """Four groups of two; a group is as good as its best k / M experts together."""
    config = replace(SMALL, experts=8, expert_groups=4, top_groups=2, top_k=4)
    scores = torch.tensor([[0.9, 0.0, 0.5, 0.45, 0.8, 0.2, 0.1, 0.1]])  # sums: 0.9, 0.95, 1.0, 0.2
    assert choose(scores, config).tolist() == [[4, 2, 3, 5]]
    drawn = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
    assert all(len(set((row // 2).tolist())) <= 2 for row in choose(drawn, config))


@pytest.mark.parametrize("gate", Gate)
def test_scores(gate: Gate) -> None:
    logits = torch.tensor([[1.0, -1.0, 0.0, 3.0]])
    expected = logits.exp() / logits.exp().sum() if gate is Gate.SOFTMAX else 1 / (1 + (-logits).exp())
    torch.testing.assert_close(scores_of(logits, replace(SMALL, gate=gate)), expected)


def fits_one_by_one(chosen: Tensor, config: MoEConfig) -> Tensor:
    """`fits`, a choice at a time."""
    kept = torch.zeros_like(chosen).bool()
    for window in range(len(chosen)):
        left = [room(chosen.shape[1], config)] * config.experts
        for choice, token in itertools.product(range(chosen.shape[2]), range(chosen.shape[1])):
            expert = int(chosen[window, token, choice])
            if expert >= 0 and left[expert]:
                left[expert] -= 1
                kept[window, token, choice] = True
    return kept


@pytest.mark.parametrize("capacity", [0.3, 0.75, 1.0, 1.25, 9.0])
def test_first_choices_of_all_tokens_come_before_second_ones(capacity: float) -> None:
    config = replace(SMALL, capacity=capacity)
    scores = torch.rand(3, 11, 4, generator=torch.Generator().manual_seed(1))
    chosen = choose(scores, config)
    chosen[1, 4] = NOWHERE
    kept, expected = fits(chosen, config), fits_one_by_one(chosen, config)
    assert torch.equal(kept & (chosen >= 0), expected)
    assert counts_of(chosen.masked_fill(~kept, NOWHERE), 4).max() <= room(11, config)


def test_room_is_rounded_up() -> None:
    assert room(10, replace(SMALL, capacity=1.0)) == 5
    assert room(10, replace(SMALL, capacity=1.01)) == 6
    assert room(3, replace(SMALL, capacity=0.1)) == 1


def test_the_balance_loss_is_that_of_the_paper_and_least_where_all_are_alike() -> None:
    """Fedus et al. 2021, equation 4: E · sum of f_i P_i, which is 1 where all experts are alike."""
    scores = torch.rand(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).softmax(-1)
    chosen = choose(scores, SMALL)
    counts = counts_of(chosen, 4).sum(0, keepdim=True)
    shares = torch.stack([(chosen == expert).sum() for expert in range(4)]) / chosen.numel()
    expected = 4 * (shares * scores.mean((0, 1))).sum()
    every = torch.ones(6, dtype=torch.bool)
    assert float(balance_loss(scores, counts, every, SMALL, tokens=12)) == pytest.approx(float(expected))
    even = torch.full((1, 8, 4), 0.25)
    assert float(balance_loss(even, torch.full((1, 4), 4), torch.ones(8).bool(), SMALL, tokens=8)) == pytest.approx(1)
    assert float(logit_loss(torch.zeros(1, 3, 4), torch.ones(3).bool(), 3)) == pytest.approx(log(4) ** 2)


@pytest.mark.parametrize("balance", Balance)
def test_a_loss_has_a_gradient_in_the_router_alone_and_is_counted_once(balance: Balance) -> None:
    """Against the same loss added at the end of the model, by hand."""
    config = replace(SMALL, balance=balance, z_loss=0.1)
    tokens = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(3))
    model, by_hand = (create(architecture, config, dtype=torch.float64) for _ in range(2))
    kept: list[Tensor] = []
    for layer in mixtures_in(by_hand).values():
        layer.router.register_forward_hook(lambda module, inputs, logits: kept.append(logits))
        layer.load.scale = 0.0
    for each in (model, by_hand):
        for layer in mixtures_in(each).values():
            layer.load.begin_step(24, layer.load.scale)
    token_loss(model(tokens), tokens, 24).backward()
    loss, auxiliary = token_loss(by_hand(tokens), tokens, 24), []
    for logits in kept:
        scores = scores_of(logits, config)
        chosen, every = choose(scores, config), torch.ones(12, dtype=torch.bool)
        counts = counts_of(chosen[..., :1] if balance is Balance.GSHARD else chosen, 4)
        counts = counts if balance is Balance.SEQUENCE else counts.sum(0, keepdim=True)
        auxiliary.append(0.1 * logit_loss(logits, every, 24))
        if balance not in (Balance.NONE, Balance.BIAS):
            auxiliary.append(config.balance_rate * balance_loss(scores, counts, every, config, 24))
    (loss + sum(auxiliary)).backward()
    for (name, mine), other in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-15, msg=name)
    counted = sum(float(layer.load.loss) for layer in mixtures_in(model).values())
    assert counted == pytest.approx(float(sum(auxiliary)))


@pytest.mark.parametrize("how", Recompute)
def test_recomputation_keeps_the_routing_and_counts_it_once(how: Recompute) -> None:
    """Also where the router would choose otherwise the second time: here, since its bias has moved."""
    config = replace(SMALL, balance=Balance.BIAS, capacity=0.9)
    tokens = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(4))
    gradients, counts = [], []
    for way in (Recompute.NONE, how):
        model = create(architecture, config, dtype=torch.float64)
        recompute(model, way)
        layers = mixtures_in(model).values()
        for layer in layers:
            layer.load.bias = torch.zeros(4, dtype=torch.float64)
        loss = token_loss(model(tokens), tokens, 24)
        for layer in layers:
            layer.load.bias = torch.tensor([9.0, 0.0, 0.0, 5.0], dtype=torch.float64)
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        counts.append([layer.load.counts.tolist() for layer in layers])
    assert counts[0] == counts[1] and sum(counts[0][0]) == 48
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-15)


def test_an_expert_without_rows_has_a_gradient_of_zeros() -> None:
    weights = torch.rand(3, 2, 4, requires_grad=True)
    grouped(torch.rand(5, 4), weights, [3, 0, 2]).sum().backward()
    assert weights.grad[1].eq(0).all() and weights.grad[0].ne(0).all()
    none = torch.empty(0, 2, 4, requires_grad=True)
    grouped(torch.empty(0, 4, requires_grad=True), none, []).sum().backward()
    assert none.grad.shape == none.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("counts", [(3, 0, 4), (0, 0, 7), (7, 0, 0), (0, 0, 0)])
def test_groups_of_rows_have_the_same_products_with_a_kernel_and_without(
    counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Also where the gradient of the output is a view with gaps."""
    random = torch.Generator().manual_seed(5)
    rows, weights = (torch.randn(shape, generator=random).to(dtype) for shape in ((sum(counts), 8), (3, 16, 8)))
    found = []
    for each in (dtype, torch.float64):
        leaves = [x.to(each).requires_grad_() for x in (rows, weights)]
        out = grouped(*leaves, counts)
        found.append((out, *torch.autograd.grad(out[:, :1].sum() + out.sum(), leaves)))
    assert has_kernel(rows, weights) == (dtype != torch.float64 and sum(counts) > 0)
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=1e-5 if dtype != torch.bfloat16 else 0.1)


def test_a_dropped_token_keeps_its_residual_stream() -> None:
    """Experts add nothing to it; it goes nowhere, and is not lost."""
    config = replace(SMALL, shared_experts=0, capacity=1e-9)  # one token for each expert
    layer = next(iter(mixtures_in(create(architecture, config, dtype=torch.float64)).values()))
    out = layer(torch.rand(1, 20, 16, dtype=torch.float64), torch.arange(20))
    assert int(layer.load.dropped) >= 40 - 4 and int((out == 0).all(-1).sum()) >= 16


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"top_k": 5}, "a token goes to 5 experts, and there are 4"),
        ({"top_k": 1}, "normalised=False"),
        ({"expert_groups": 3}, "groups are of one size"),
        ({"expert_groups": 2, "top_groups": 3}, "groups are of one size"),
        ({"expert_groups": 4, "top_groups": 1}, "do not have 2 for a token"),
        ({"dense_layers": 2}, "2 of 2 layers without experts"),
        ({"experts": 0}, "whole number, 1 or more"),
        ({"capacity": -1.0}, "0 or more"),
        ({"balance": "fair"}, "balance is one of none, switch"),
        ({"gated": False}, "experts are gated feed-forwards"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        replace(SMALL, **wrong)


def test_which_blocks_have_experts() -> None:
    config = replace(SMALL, layers=7, dense_layers=2, experts_every=2)
    assert config.expert_layers == (3, 5)
    assert list(mixtures_in(create(architecture, config, device="meta"))) == [3, 5]


def test_shared_experts_fit_heads_with_a_size_of_their_own() -> None:
    config = replace(SMALL, width=18, head_size=6)  # 18 / 4 heads is no whole number
    assert config.parameters == sum(p.numel() for p in create(architecture, config, device="meta").parameters())


def test_a_router_keeps_its_bits_under_autocast() -> None:
    router, x = create(architecture, SMALL).blocks[0].feed_forward.router, torch.rand(2, 3, 16)
    expected = router(x)
    with torch.autocast("cpu", torch.bfloat16):
        logits = router(x)
    assert logits.dtype == torch.float32 and torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiler_takes_groups_of_rows(dtype: torch.dtype) -> None:
    rows, weights = torch.rand(7, 8, dtype=dtype), torch.rand(3, 16, 8, dtype=dtype)
    assert has_kernel(rows, weights)
    found = torch.compile(grouped, backend="aot_eager", fullgraph=True)(rows, weights, [3, 0, 4])
    torch.testing.assert_close(found, grouped(rows, weights, [3, 0, 4]))


def test_a_model_that_borrows_its_experts_can_be_copied() -> None:
    model, tokens = create(architecture, SMALL), torch.arange(12).view(2, 6)
    expected, _ = model(tokens), lift_experts(model)
    assert torch.equal(copy.deepcopy(model)(tokens), expected)

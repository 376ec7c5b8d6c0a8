"""Experts that choose tokens are equally busy, and look at tokens that come later."""

from dataclasses import replace

import torch

from reference.expert_parallel.lab.expert_choice import chosen_by_experts, experts_of_tokens, looks_ahead
from reference.models.moe_config import MoEConfig
from reference.models.routing import choose, counts_of

CONFIG = MoEConfig(2, 16, 4, 2, 24, experts=4, top_k=2, capacity=1.0)
SCORES = torch.rand(2, 12, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_each_expert_takes_its_even_share_of_the_best() -> None:
    chosen = chosen_by_experts(SCORES, CONFIG)
    assert counts_of(chosen, 4).tolist() == [[6] * 4] * 2  # k S / E
    for window, expert in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        taken = (chosen[window] == expert).any(-1)
        assert SCORES[window, taken, expert].min() >= SCORES[window, ~taken, expert].max()
    tokens = experts_of_tokens(chosen)
    assert tokens.sum() == 24 and (tokens * torch.arange(5)).sum() == 48
    assert tokens[0] or tokens[3:].any()  # not two for each


def test_equal_scores_go_to_the_first_tokens() -> None:
    chosen = chosen_by_experts(torch.full((1, 4, 4), 0.25), replace(CONFIG, top_k=1, normalised=False))
    assert chosen[0].tolist() == [[0, 1, 2, 3]] + [[-1] * 4] * 3


def test_what_experts_choose_depends_on_later_tokens_and_what_tokens_choose_does_not() -> None:
    assert looks_ahead(SCORES[:1], CONFIG) > 0.2
    ends = [choose(SCORES[:1, : end + 1], CONFIG)[0, end] for end in range(12)]
    assert torch.equal(torch.stack(ends), choose(SCORES[:1], CONFIG)[0])

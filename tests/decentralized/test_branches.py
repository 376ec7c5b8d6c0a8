"""Branches merge into what one process makes of them, and equal branches into themselves."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.decentralized.branches import average, ensemble, into_experts, mixture
from reference.errors import BadInput
from reference.models import GPT, GPTConfig, create
from reference.models.config import preset
from reference.models.moe import MoE
from reference.models.moe_config import Balance, mixed_config

CONFIG = GPTConfig(layers=2, width=8, heads=2, kv_heads=1, hidden=12)
TOKENS = torch.arange(24).view(2, 12)


def branch(seed: int) -> GPT:
    return create(GPT, CONFIG, seed, dtype=torch.float64)


def _merged(equal: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    communicator = over(dist.group.WORLD)
    model = branch(0 if equal else dist.get_rank())
    mixed = into_experts(model.state_dict(), CONFIG, communicator)
    average(model, communicator)
    return mixed, {name: x.clone() for name, x in model.state_dict().items()}


def test_ranks_merge_as_one_process_does(clusters: Callable[..., Cluster]) -> None:
    states = [branch(rank).state_dict() for rank in range(3)]
    for mixed, mean in clusters(3).run(_merged, False):
        for name in mean:
            every = torch.stack([state[name] for state in states])
            torch.testing.assert_close(mean[name], every.mean(0), rtol=1e-14, atol=1e-16)
            if "feed_forward." in name:
                assert torch.equal(mixed[name.replace("feed_forward.", "feed_forward.experts.")], every)
            else:
                torch.testing.assert_close(mixed[name], every.mean(0), rtol=1e-14, atol=1e-16)


def test_equal_branches_become_a_mixture_that_is_each_of_them(clusters: Callable[..., Cluster]) -> None:
    """Whatever a router that knows nothing chooses, and through backward."""
    mixed, _ = clusters(3).run(_merged, True)[0]
    mixture_of_experts = create(MoE, replace(mixed_config(CONFIG, 3), balance=Balance.NONE), dtype=torch.float64)
    mixture_of_experts.load_state_dict(mixed)
    dense = branch(0)
    expected, found = dense(TOKENS), mixture_of_experts(TOKENS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(mixture_of_experts.embedding.weight.grad, dense.embedding.weight.grad)


def test_an_ensemble_weighs_branches_by_what_they_have_predicted(clusters: Callable[..., Cluster]) -> None:
    """Bayes' rule, token after token."""
    said = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    expected, chances = [], torch.full((3, 2), 1 / 3, dtype=torch.float64)
    for each in said.exp().unbind(2):
        expected.append((chances * each).sum(0))
        chances = chances * each / (chances * each).sum(0)
    torch.testing.assert_close(mixture(said).exp(), torch.stack(expected, 1), rtol=1e-12, atol=0)

    def on_ranks() -> torch.Tensor:
        return ensemble(said[dist.get_rank()], over(dist.group.WORLD))

    for result in clusters(3).run(on_ranks):
        assert torch.equal(result, mixture(said))
    assert mixture(said).sum() >= said.sum((1, 2)).max() - 2 * torch.log(torch.tensor(3.0)), "at most log n each worse"


def test_one_branch_is_no_mixture() -> None:
    with pytest.raises(BadInput, match="a mixture is of 2 branches or more, not of 1"):
        mixed_config(CONFIG, 1)


@pytest.mark.parametrize(("name", "kind"), [("4xtiny-encoder", "EncoderConfig"), ("4xmoe-tiny", "MoEConfig")])
def test_what_has_no_single_feed_forward_is_no_branch(name: str, kind: str) -> None:
    with pytest.raises(BadInput, match=f"made of a GPT without experts, as in 4xdemo, not of {kind}"):
        preset(name)

"""What instruments note is what the model does."""

from dataclasses import replace

import pytest
import torch

from reference.expert_parallel.lab.published import DEEPSEEK_V3
from reference.expert_parallel.lab.watching import choices_of, routes_in
from reference.memory.recompute import Recompute, recompute
from reference.models import architecture, create, preset
from reference.models.routing import NOWHERE


def test_choices_are_noted_as_routers_make_them() -> None:
    model = create(architecture, preset("moe-tiny"), 0)
    tokens = torch.randint(256, (2, 5))
    before = model(tokens)
    with choices_of(model) as found:
        assert torch.equal(model(tokens), before)
    model(tokens)
    assert {number: [tuple(x.shape) for x in noted] for number, noted in found.items()} == {
        0: [(10, 2)],
        1: [(10, 2)],
    }
    assert torch.equal(torch.bincount(found[1][0].flatten(), minlength=4) * 3, model.blocks[1].feed_forward.load.counts)


@pytest.mark.parametrize("how", list(Recompute))
def test_routes_are_noted_once_and_without_what_was_dropped(how: Recompute) -> None:
    """A block that is computed again decides nothing new; where an expert is full, a choice goes nowhere."""
    model = create(architecture, replace(preset("moe-tiny"), capacity=0.5), 0)
    recompute(model, how)
    tokens = torch.randint(256, (2, 6))
    ops = model.ops
    with choices_of(model) as wanted, routes_in(model) as found:
        model(tokens).sum().backward()
    assert model.ops is ops
    for number, layer in enumerate(model.blocks):
        (routes,) = found[number]
        assert routes.shape == (12, 2) and int((routes == NOWHERE).sum()) == layer.feed_forward.load.dropped > 0
        kept = routes != NOWHERE
        assert torch.equal(routes[kept], wanted[number][0][kept])


def test_experts_of_deepseek_v3_are_most_of_its_671_thousand_millions() -> None:
    """Of the 671B parameters that its report gives (sec. 4.2); 37B of them are used for a token."""
    assert 0.97 < DEEPSEEK_V3.expert_parameters * 256 * len(DEEPSEEK_V3.expert_layers) / 671e9 < 0.98

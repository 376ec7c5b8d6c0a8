"""What instruments note is what the model does."""

import torch

from reference.expert_parallel.lab.published import DEEPSEEK_V3
from reference.expert_parallel.lab.watching import choices_of
from reference.models import architecture, create, preset


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


def test_experts_of_deepseek_v3_are_most_of_its_671_thousand_millions() -> None:
    """Of the 671B parameters that its report gives (sec. 4.2); 37B of them are used for a token."""
    assert 0.97 < DEEPSEEK_V3.expert_parameters * 256 * len(DEEPSEEK_V3.expert_layers) / 671e9 < 0.98

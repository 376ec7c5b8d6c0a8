"""A model writes only what can be drawn."""

import pytest
import torch

from reference.models import GPT, create, preset
from reference.models.sample import continue_tokens


def written(**options: float) -> torch.Tensor:
    return continue_tokens(create(GPT, preset("tiny")), torch.tensor([1, 2, 3]), 4, **{"window": 8} | options)


def test_it_appends_what_the_seed_says():
    assert written().tolist()[:3] == [1, 2, 3]
    assert len(written()) == 7
    assert torch.equal(written(seed=1), written(seed=1))


@pytest.mark.parametrize("temperature", [0, -1, float("nan")])
def test_a_temperature_is_above_zero(temperature: float):
    with pytest.raises(ValueError, match="temperature is above 0"):
        written(temperature=temperature)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_is_one_token_at_least(window: int):
    with pytest.raises(ValueError, match="window is the number of tokens"):
        written(window=window)

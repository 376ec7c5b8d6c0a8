"""A model writes what it expects, and only what can be drawn."""

import pytest
import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models import GPT, create, preset
from reference.models.sample import continue_tokens

TOKENS = [1, 2, 3]


def written(more: int = 4, **options: float) -> Tensor:
    return continue_tokens(create(GPT, preset("tiny")), torch.tensor(TOKENS), more, **{"window": 8} | options)


class NextButOne(nn.Module):
    """Says that the token two further on is a little more likely than all others. Knows what it has been shown."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.shown = vocabulary, []

    def forward(self, tokens: Tensor) -> Tensor:
        """[1, S] -> [1, S, V]."""
        self.shown.append(tokens[0].tolist())
        return torch.eye(self.vocabulary)[(tokens + 2) % self.vocabulary]


def test_it_appends_what_the_seed_says():
    assert written().tolist()[:3] == TOKENS
    assert len(written()) == 7
    assert torch.equal(written(more=40, seed=1), written(more=40, seed=1))
    assert not torch.equal(written(more=40, seed=1), written(more=40, seed=2))


def test_a_model_sees_the_last_tokens_alone():
    model = NextButOne(10)
    text = continue_tokens(model, torch.tensor(TOKENS), 5, window=4).tolist()
    assert model.shown == [text[max(0, end - 4) : end] for end in range(3, 8)]


def test_the_colder_the_surer():
    """Next to zero it writes the likeliest token; hot, nearly any."""
    cold, hot = (
        continue_tokens(NextButOne(50), torch.tensor(TOKENS), 40, window=4, temperature=temperature).tolist()
        for temperature in (1e-3, 1e3)
    )
    assert cold[2:] == [(3 + 2 * step) % 50 for step in range(41)]
    assert len(set(hot[3:])) > 20


@pytest.mark.parametrize("temperature", [0, -1, float("nan")])
def test_a_temperature_is_above_zero(temperature: float):
    with pytest.raises(BadInput, match="temperature is above 0"):
        written(temperature=temperature)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_is_one_token_at_least(window: int):
    with pytest.raises(BadInput, match="window is the number of tokens"):
        written(window=window)

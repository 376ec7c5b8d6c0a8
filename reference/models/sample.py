"""Let a trained model write."""

import torch
from torch import Tensor

from reference.errors import BadInput
from reference.models.gpt import GPT


@torch.no_grad()
def continue_tokens(
    model: GPT, tokens: Tensor, more: int, window: int, temperature: float = 0.8, seed: int = 0
) -> Tensor:
    """Append `more` tokens, each drawn from what the model expects after those before it.

    Everything within the window is computed anew for each token: simple, and slow for long texts.

    Args:
        model: a language model.
        tokens: [S] of int64, at least one.
        more: how many to draw.
        window: the model sees this many of the last tokens, at least one.
        temperature: above 0; below 1 it prefers the likely.
        seed: of the draws.

    Returns:
        [S + more] of int64.

    Raises:
        BadInput: a temperature or a window of nothing.
    """
    if not temperature > 0:
        raise BadInput(f"temperature is above 0, not {temperature}: for the likeliest token take a small one")
    if window < 1:
        raise BadInput(f"window is the number of tokens that the model sees, 1 or more, not {window}")
    generator = torch.Generator(tokens.device).manual_seed(seed)
    for _ in range(more):
        logits = model(tokens[None, -window:])[0, -1]
        chances = (logits / temperature).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)])
    return tokens

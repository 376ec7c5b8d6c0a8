"""Masks that cancel in a sum, and what to say where a partner's half is missing (Bonawitz et al. 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .mask import mask_of

MODULUS = 2**32


def masked(x: Tensor, seeds: Sequence[int], rank: int, gone: int) -> tuple[Tensor, Tensor]:
    """What a client says, and what it says once it is known who is gone.

    Args:
        x: [N] of int64, from 0 to 2^32 - 1.
        seeds: that this client shares with each of the n; its own place means nothing.
        rank: of this client.
        gone: another one, whose message does not arrive.

    Returns:
        The masked x, and the part of its mask that nothing cancels: [N] of int64 each, modulo 2^32.
    """
    said, lonely = x.clone(), torch.zeros_like(x)
    for other, seed in enumerate(seeds):
        if other == rank:
            continue
        mask = mask_of(seed, len(x)) if other > rank else -mask_of(seed, len(x))
        said += mask
        if other == gone:
            lonely = mask
    return said % MODULUS, lonely % MODULUS

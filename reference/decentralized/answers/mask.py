"""The mask that two who share a seed both can draw."""

import torch
from torch import Tensor


def mask_of(seed: int, length: int) -> Tensor:
    """A mask that both who know the seed can draw: [length] of int64, each number from 0 to 2^32 - 1."""
    return torch.randint(2**32, (length,), generator=torch.Generator().manual_seed(seed))

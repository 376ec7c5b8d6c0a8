"""What all ranks draw alike, without a message: a generator for a seed, and the number of the draw."""

import torch


def generator_of(seed: int, number: int) -> torch.Generator:
    """The same on every rank, for the draw of this number, from 0 on; a seed has up to 64 bits."""
    return torch.Generator().manual_seed((1_000_003 * seed + number) % 2**63)

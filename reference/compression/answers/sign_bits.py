"""Bits of signs, eight in a byte, with and without a scale: what the puzzles on 1 bit are given."""

import torch
from torch import Tensor


def pack(x: Tensor) -> Tensor:
    """A bit for each element of `x` [..., L], 1 where it is 0 or more: bytes [..., L/8]. 8 divides L."""
    bits = (x >= 0).unflatten(-1, (-1, 8)).to(torch.uint8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """1 and -1 of bytes [..., L/8]: float64 [..., L]."""
    bits = (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten(-2).to(torch.float64) * 2 - 1


def encode(x: Tensor) -> Tensor:
    """Signs and mean magnitude of each row of `x` [..., L]: bytes [..., L/8 + 4]. 8 divides L."""
    scale = x.abs().mean(-1, keepdim=True).float()
    return torch.cat([pack(x), scale.view(torch.uint8)], dim=-1)


def decode(message: Tensor) -> Tensor:
    """What bytes of `encode` mean, each row of them: float64 [..., L]."""
    scale = message[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return unpack(message[..., :-4]) * scale

"""Numbers that several puzzles quantise, and bytes of what comes of it."""

import torch
from torch import Tensor

from puzzles.grading.puzzle import Case
from reference.compression.plain import TINY

FLOAT = 4
KINDS = ("even", "a large one", "zeros", "tiny")
"""Of blocks. Those with "nan" or "infinity" beside them are for puzzles that say what becomes of them."""


def block_of(case: Case, rank: int, number: int, largest: int, kind: str) -> Tensor:
    """A block of numbers none of which is near the middle between two that can be said, so that there is one answer."""
    draw = case.normal(rank, case.block, name=f"block {number}").float()
    codes = (draw * largest / 3).round().clamp(-largest, largest)
    codes[0] = largest if number % 2 else -largest
    scale = 2.0 ** (number % 5 - 2)
    offset = (case.normal(rank, case.block, name=f"offset {number}").float() * 0.1).clamp(-0.3, 0.3)
    offset[codes.abs() == largest] = 0.0
    x = (codes + offset) * scale
    match kind:
        case "a large one":
            x[-1] = 1000 * largest * scale
        case "zeros":
            x.zero_()
        case "tiny":
            x = codes * (TINY / 64)
        case "nan":
            x[case.block // 2] = torch.nan
        case "infinity":
            x[case.block // 2] = -torch.inf
    return x


def codes_and_scale(x: Tensor, largest: int) -> tuple[list[int], float]:
    """A block's integers and scale, number by number."""
    peak = max(abs(number) for number in x.tolist())
    if not torch.isfinite(x).all():
        return [0] * len(x), float("nan")
    scale = max(float(torch.tensor(peak, dtype=torch.float32) / largest), TINY)
    return [round(number / scale) for number in x.tolist()], scale


def rounded(x: Tensor, block: int, largest: int) -> Tensor:
    """What arrives of x, in float64: block by block."""
    found = []
    for one in x.float().split(block):
        codes, scale = codes_and_scale(one, largest)
        found.append(torch.tensor(codes, dtype=torch.float64) * scale)
    return torch.cat(found)


def sent(numel: int, block: int, bits: int) -> int:
    """Bytes of so many codes, and of the scales of their blocks."""
    return numel * bits // 8 + FLOAT * (numel // block)

"""Where a sum in few bits stops growing, and how to add up what is given in few bits.

A float of p significant bits (bf16 8, fp16 11, fp32 24) near s lies on a grid of width between s/2^(p-1) and s/2^p. To
add less than half of that width changes nothing: the result is rounded back to s. So a running sum of equal terms
grows until it is about 2^p times as large as they are, and stays there forever, without any error. In bf16 that is the
256th micro-batch. (`reference.memory.lab.sums` shows every step on the way there, and other ways out.)

Goldberg 1991, "What every computer scientist should know about floating-point arithmetic".
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def stalls_at(value: float, dtype: torch.dtype) -> float:
    """Where a running sum of `value`, `value`, `value`, ... in `dtype` stays forever.

    The grid becomes wider at powers of two. From 2^e on its width is 2^e · eps, and half of that is too much for
    `value` for the first time where 2^e · eps / 2 >= value: a tie is rounded to even, which is to 2^e itself.

    In float16, for values above 16, that is beyond 65,504: such a sum overflows before it stalls.

    Args:
        value: positive, and a number of `dtype`.
        dtype: of floats.
    """
    return 2.0 ** math.ceil(math.log2(value)) * 2 / torch.finfo(dtype).eps


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of low-precision tensors, added up in float32 and rounded once.

    Args:
        parts: at least one, all of one shape and of one dtype of 16 bits.

    Returns: of that shape and dtype. Needs 4 bytes an element while it runs: one accumulator, not a copy of each part.
    """
    accumulator = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        accumulator += part
    return accumulator.to(parts[0].dtype)

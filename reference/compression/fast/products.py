"""Products of 8-bit numbers by kernels: int8 on any CPU and on GPUs, fp8 on GPUs from NVIDIA's Hopper on.

Elsewhere codes times scales are multiplied in the dtype that is computed in, which gives the same up to the order of
additions: scales are powers of two.
"""

import torch
from torch import Tensor

from reference.compression.plain_low_bits import FP8, INT8, EightBitNumbers
from reference.dtypes import accumulator

HOPPER = (9, 0)
MULTIPLE = 16  # of sides, that fp8 kernels take; int8 on GPUs takes multiples of 8, and more than 16 rows


def has_kernel(x: Tensor, weight: Tensor, numbers: EightBitNumbers) -> bool:
    """Whether a kernel takes the product of codes of x [..., in] with those of a weight [out, in]."""
    rows = x.numel() // x.shape[-1]
    fits = all(side % MULTIPLE == 0 for side in weight.shape)
    if numbers is INT8:
        return not x.is_cuda or (fits and rows > MULTIPLE)
    is_new = x.is_cuda and torch.cuda.get_device_capability(x.device) >= HOPPER
    return numbers is FP8 and is_new and fits and x.dtype is torch.bfloat16


def product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x Wᵀ of codes, times their scales.

    Args:
        x: [..., in] of codes.
        x_scale: [..., 1].
        weight: [out, in] of codes.
        weight_scale: one number.
        dtype: of the result.
    """
    flat, scales = x.flatten(0, -2), x_scale.flatten(0, -2)
    if x.dtype is torch.int8:
        wide = accumulator(dtype)  # sums of codes are too large for float16, and products of scales too small
        made = (torch._int_mm(flat, weight.T).to(wide) * (scales.to(wide) * weight_scale.to(wide))).to(dtype)
    else:
        columns = weight_scale.float().expand(1, len(weight)).contiguous()
        made = torch._scaled_mm(flat, weight.T, scales.float(), columns, out_dtype=dtype)
    return made.view(*x.shape[:-1], len(weight))

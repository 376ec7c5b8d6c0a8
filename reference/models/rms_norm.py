"""RMSNorm with a backward by hand, which keeps its input and one number for each token, as the kernels of GPUs do.

    y = w x / r,    r² = mean(x²) + ε                                    (Zhang and Sennrich 2019, equation 4)
    dw = sum over tokens of dy n,    dx = (w dy - n mean(w dy n)) / r,    with n = x / r

torch has one kernel for it on a GPU. On a CPU it is a chain of operations there, each of which goes through memory, and
autograd keeps what they hand on: three times as long, and one more copy of the input to keep.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.dtypes import accumulator


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Scale each token to a root mean square of one, and each feature by its weight: [..., D] and [D] -> [..., D].

    Computes in float32 at least. On a CPU differentiable once.
    """
    if x.is_cuda:
        return F.rms_norm(x, weight.shape, weight, epsilon)
    length = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True, dtype=accumulator(x.dtype))
    return _Scaled.apply(x, weight, length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_())


class _Scaled(Function):
    """y = w x · scale, where backward knows that scale is 1 / r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        gradient, wide = gradient.to(scale.dtype), weight.to(scale.dtype)
        normalised = x * scale
        of_weight = gradient * normalised
        along = torch.linalg.vecdot(of_weight, wide).unsqueeze(-1)
        of_x = (gradient * wide).addcmul_(normalised, along, value=-1 / x.shape[-1]).mul_(scale)
        return of_x.to(x.dtype), of_weight.sum_to_size(weight.shape).to(weight.dtype), None

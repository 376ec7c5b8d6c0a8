"""Each group of rows times its own matrix: the product inside a layer of experts.

torch has a kernel for it that takes all groups at once, in float32 and bfloat16: with 64 experts on a CPU core, forward
and backward take about half of the time. Elsewhere each group is a product of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

ALIGNED = 16  # bytes, of which a row has a whole number: the kernel asks for it


def grouped(rows: Tensor, weights: Tensor, counts: Sequence[int]) -> Tensor:
    """[N, in] and [E, out, in] -> [N, out]. A group may have no rows; its matrix has a gradient of zeros then.

    Args:
        rows: those of the first group first.
        weights: a matrix of each group.
        counts: rows of each group.
    """
    if not len(weights):  # a rank without experts, and so without rows: what it makes has a gradient all the same
        return rows @ weights.sum(0).T
    if has_kernel(rows, weights):
        ends = torch.tensor(counts, device=rows.device).cumsum(0, dtype=torch.int32)
        return ContiguousGradient.apply(F.grouped_mm(rows, weights.mT, offs=ends))
    products = [part @ weight.T for part, weight in zip(rows.split(list(counts)), weights.unbind(), strict=True)]
    return torch.cat(products)


def has_kernel(rows: Tensor, weights: Tensor) -> bool:
    """Whether torch multiplies these groups at once."""
    uneven = any(size * rows.element_size() % ALIGNED for size in weights.shape[1:])
    if uneven or not len(rows) or rows.is_meta or rows.dtype != weights.dtype:
        return False
    if torch.compiler.is_compiling():  # a compiler knows the shapes of this kernel in bfloat16 alone
        return rows.dtype == torch.bfloat16
    return rows.dtype == torch.bfloat16 or (rows.is_cpu and rows.dtype == torch.float32)


class ContiguousGradient(Function):
    """`apply(x)` is `x`; its gradient comes as a copy where it is a view with gaps, which the kernel does not take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()

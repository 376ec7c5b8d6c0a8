"""In which dtypes to compute what is stored in others."""

import torch
from torch import Tensor, nn


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """In which sums over many numbers of `dtype` are made: at least float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` is on where `x` is; some devices, as meta, have none."""
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type)


def give_gradient(master: nn.Parameter, gradient: Tensor | None) -> None:
    """Let a master's `grad` be this: in its own dtype, or where that has fewer bits, as it is."""
    if gradient is not None and gradient.dtype.itemsize > master.dtype.itemsize:
        master.grad_dtype = gradient.dtype  # else torch refuses
    master.grad = gradient if gradient is None else gradient.to(master.grad_dtype)

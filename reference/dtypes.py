"""In which dtypes to compute what is stored in others."""

import torch
from torch import Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """In which sums over many numbers of `dtype` are made: at least float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` is on where `x` is; some devices, as meta, have none."""
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type)

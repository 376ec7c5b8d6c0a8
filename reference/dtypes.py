"""In which dtypes to compute what is stored in others."""

import torch


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """In which sums over many numbers of `dtype` are made: at least float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype

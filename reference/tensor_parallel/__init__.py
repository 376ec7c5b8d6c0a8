"""Tensor parallelism: every rank computes with a part of every matrix, and sees every token."""

from .layout import placement, require_fit, spec_of
from .linear import ColumnParallelLinear, RowParallelLinear
from .ops import parallelize_layers, placements, split_parameters
from .region import Region

__all__ = [
    "ColumnParallelLinear",
    "Region",
    "RowParallelLinear",
    "parallelize_layers",
    "placement",
    "placements",
    "require_fit",
    "spec_of",
    "split_parameters",
]

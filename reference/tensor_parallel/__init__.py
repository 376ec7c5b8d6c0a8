"""Tensor parallelism: every rank computes with a part of every matrix, and sees every token."""

from .form import TwoAxes
from .gpt import compute_in, placements, split_parameters
from .layout import LAYOUT, Placement, placement, require_fit
from .linear import ColumnParallelLinear, RowParallelLinear
from .region import Region

__all__ = [
    "LAYOUT",
    "ColumnParallelLinear",
    "Placement",
    "Region",
    "RowParallelLinear",
    "TwoAxes",
    "compute_in",
    "placement",
    "placements",
    "require_fit",
    "split_parameters",
]

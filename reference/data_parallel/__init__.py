"""Data parallelism: every rank holds the whole model and reads its own part of the batch."""

from .form import DataParallel, Part, UpdateForm
from .norm import clip, gradient_norm
from .replicated import DistributedDataParallel, Replicated, flat, naive
from .whole import whole

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "Part",
    "Replicated",
    "UpdateForm",
    "clip",
    "flat",
    "gradient_norm",
    "naive",
    "whole",
]

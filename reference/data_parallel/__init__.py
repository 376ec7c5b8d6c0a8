"""Data parallelism: every rank holds the whole model and reads its own part of the batch."""

from .form import DataParallel, Part, UpdateForm
from .norm import clip, gradient_norm
from .replicated import DistributedDataParallel, Replicated, flat, naive
from .whole import full_state_dict, whole

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "Part",
    "Replicated",
    "UpdateForm",
    "clip",
    "flat",
    "full_state_dict",
    "gradient_norm",
    "naive",
    "whole",
]

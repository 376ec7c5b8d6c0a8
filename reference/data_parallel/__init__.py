"""Data parallelism: every rank holds the whole model and reads its own part of the batch."""

from .form import DataParallel, NoGradient, Part, UpdateForm
from .initial import broadcast_state, find_drift, replicas_agree
from .norm import clip, gradient_norm
from .replicated import DistributedDataParallel, Replicated, flat, naive
from .sampler import ShardedSampler
from .uneven import joined, weighted_loss
from .whole import whole

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "NoGradient",
    "Part",
    "Replicated",
    "ShardedSampler",
    "UpdateForm",
    "broadcast_state",
    "clip",
    "find_drift",
    "flat",
    "gradient_norm",
    "joined",
    "naive",
    "replicas_agree",
    "weighted_loss",
    "whole",
]

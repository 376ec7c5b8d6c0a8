"""Sequence parallelism: between the regions of tensor parallelism, every rank has a slice of the sequence."""

from .region import SequenceRegion
from .ring import RingRegion

__all__ = ["RingRegion", "SequenceRegion"]

"""Sequence parallelism: between the regions of tensor parallelism, every rank has a slice of the sequence."""

from reference.sequence_parallel.fast.ring import RingRegion

from .region import SequenceRegion

__all__ = ["RingRegion", "SequenceRegion"]

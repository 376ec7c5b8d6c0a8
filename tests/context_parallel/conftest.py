"""The same ranks as for the forms of data parallelism, and the same numbers as for tensor parallelism."""

from ..sequence_parallel.conftest import EXACT, far, farthest, normal, on, ranks

__all__ = ["EXACT", "far", "farthest", "normal", "on", "ranks"]

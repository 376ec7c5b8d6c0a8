"""What communication costs: a latency for each message, a time for each byte, and what follows from the two."""

from .bandwidth import bus_bandwidth, bus_factor
from .best import TIMES, best_algorithm, crossing
from .estimate import alpha_beta
from .hierarchical import flat_ring_time, hierarchical_time
from .time import halving_doubling_time, naive_time, recursive_doubling_time, ring_time

__all__ = [
    "TIMES",
    "alpha_beta",
    "best_algorithm",
    "bus_bandwidth",
    "bus_factor",
    "crossing",
    "flat_ring_time",
    "halving_doubling_time",
    "hierarchical_time",
    "naive_time",
    "recursive_doubling_time",
    "ring_time",
]

"""What communication costs: a latency for each message, a time for each byte, and what follows from the two.

Read `plain.py`; the others ask the same of other networks. All of them are formulas, and send nothing; what does send
is in `lab`.

    plain.py                α-β: seconds of four all-reduces, from ranks, bytes, latency and bandwidth
    hierarchical.py         `plain.ring_time` with two levels of links: within nodes first
    overlapping.py          `hierarchical` with several NICs a node and phases that overlap, as NCCL does
    checks.py               what has no answer, said in one sentence; around each formula that is exported here
    answers/bandwidth.py    from seconds to algbw and busbw of nccl-tests
    answers/cheapest.py     which all-reduce for which size, and where two of them cross
    answers/estimate.py     α and β from a ping-pong
    lab/backends.py         all-reduce by MPI, gloo and hand on this machine: seconds by size
    lab/on_nodes.py         programs on nodes of this machine: measured, and replayed
    lab/published.py        what others have measured on large machines
"""

from . import hierarchical, overlapping, plain
from .answers import bandwidth, cheapest
from .answers.cheapest import TIMES
from .answers.estimate import alpha_beta
from .checks import checked

best_algorithm, crossing = checked(cheapest.best_algorithm), checked(cheapest.crossing)
bus_bandwidth, bus_factor = checked(bandwidth.bus_bandwidth), checked(bandwidth.bus_factor)
flat_ring_time, hierarchical_time = checked(hierarchical.flat_ring_time), checked(hierarchical.hierarchical_time)
overlapped_hierarchical_time, tree_time = (
    checked(overlapping.overlapped_hierarchical_time),
    checked(overlapping.tree_time),
)
naive_time, ring_time = checked(plain.naive_time), checked(plain.ring_time)
recursive_doubling_time, halving_doubling_time = (
    checked(plain.recursive_doubling_time),
    checked(plain.halving_doubling_time),
)

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
    "overlapped_hierarchical_time",
    "recursive_doubling_time",
    "ring_time",
    "tree_time",
]

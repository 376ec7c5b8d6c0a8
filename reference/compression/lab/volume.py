"""What leaves a node in a step: counted in a trace, and as it was published.

`zeropp_volume.csv` is table 1 of Wang et al. 2023, "ZeRO++", arXiv 2306.10209: per GPU, in units of M, the size of the
model in 16 bits.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference.trace import Trace

FILE = Path(__file__).with_name("zeropp_volume.csv")


@dataclass(frozen=True)
class NodeVolume:
    """What crosses from one node to others in a step, in units of M."""

    forward: float  # parameters, for forward
    backward: float  # parameters, for backward
    gradients: float

    @property
    def total(self) -> float:
        """Of all three."""
        return self.forward + self.backward + self.gradients


def published() -> dict[str, NodeVolume]:
    """Table 1, by scheme."""
    columns = ("fwd_allgather_M", "bwd_allgather_M", "bwd_reducescatter_M")
    with FILE.open(encoding="utf-8") as opened:
        return {row["scheme"]: NodeVolume(*(float(row[name]) for name in columns)) for row in csv.DictReader(opened)}


def left_node(trace: Trace, node: Sequence[int]) -> int:
    """Bytes that some ranks send to ranks that are not among them."""
    return sum(message.bytes for message in trace.messages if message.src in node and message.dst not in node)

"""GPUs and clusters: what a rank computes with, where its numbers lie, and what it is linked by.

The table is `data/hardware.csv`, each row with its source. A cluster of one's own is `GpuCluster(Gpu(...), gpus=16)`.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from reference.errors import BadInput

DATA = Path(__file__).parent / "data"

TERA, GIGA = 1e12, 1e9
MOST = 1_000_000_000  # of anything that is counted: GPUs, windows, tokens


@dataclass(frozen=True)
class Gpu:
    """One GPU, in FLOP, bytes and seconds.

    Attributes:
        name: as the table has it.
        peak: FLOP per second of dense products in bfloat16, of the data sheet.
        peak_fp8: the same in FP8; `peak` where there is none.
        reached: the part of `peak` that the best of many large products reached in practice.
        memory: bytes.
        bandwidth: bytes per second from and to memory.
        intra: bytes per second and direction of its links within a node.
        inter: bytes per second and direction of its part of the network between nodes.
    """

    name: str
    peak: float
    peak_fp8: float
    reached: float
    memory: float
    bandwidth: float
    intra: float
    inter: float

    def __post_init__(self) -> None:
        rates = (self.peak, self.peak_fp8, self.reached, self.memory, self.bandwidth, self.intra, self.inter)
        if not all(0 < rate < float("inf") for rate in rates):
            raise BadInput(f"every rate of a GPU is above 0 and finite: {self}")


@dataclass(frozen=True)
class GpuCluster:
    """GPUs in nodes of one size.

    Raises:
        BadInput: if a number is below 1, there are too many GPUs, or nodes are not filled.
    """

    gpu: Gpu
    gpus: int
    per_node: int = 8

    def __post_init__(self) -> None:
        if min(self.gpus, self.per_node) < 1:
            raise BadInput(f"a cluster has 1 GPU or more, in nodes of 1 or more, not {self.gpus} in {self.per_node}")
        if self.gpus > MOST:
            raise BadInput(f"a cluster has {MOST:,} GPUs at most, not {self.gpus:,}")
        if self.gpus > self.per_node and self.gpus % self.per_node:
            raise BadInput(f"{self.gpus} GPUs do not fill nodes of {self.per_node}")


UNKNOWN_INTER = 12.5  # GB/s: a card of 100 Gbit/s, where the table has none
UNKNOWN_REACHED = 0.8  # of the peak, where it was not measured: between the 73 and 87 % of those that were


@cache
def gpus() -> dict[str, Gpu]:
    """All GPUs of the table, by their short names: a100, h100, h200, b200, b300, gb200, v100."""
    with (DATA / "hardware.csv").open(newline="") as file:
        return {row["gpu"].split()[0].lower(): _gpu(row) for row in csv.DictReader(file)}


def _gpu(row: dict[str, str]) -> Gpu:
    peak = float(row["bf16_dense_tflops_peak"]) * TERA
    reached = row["mamf_bf16_tflops"]
    return Gpu(
        name=row["gpu"],
        peak=peak,
        peak_fp8=float(row["fp8_dense_tflops_peak"]) * TERA if row["fp8_dense_tflops_peak"] else peak,
        reached=float(reached) * TERA / peak if reached else UNKNOWN_REACHED,
        memory=float(row["hbm_gb"]) * GIGA,
        bandwidth=float(row["hbm_tbps"]) * TERA,
        intra=float(row["nvlink_unidir_gbs"]) * GIGA,
        inter=float(row["ib_per_gpu_gbs_typical"] or UNKNOWN_INTER) * GIGA,
    )


def gpu(name: str) -> Gpu:
    """A GPU by its name, short or long, in any case, and with another memory if one is said: "h100", "a100_40gb".

    Raises:
        BadInput: if the table has no such GPU.
    """
    wanted = name.strip().lower().replace("-", " ").replace("_", " ").split()
    if not wanted or wanted[0] not in gpus():
        raise BadInput(f"no GPU is called {name!r}: there are {', '.join(gpus())}")
    found, sizes = gpus()[wanted[0]], [word[:-2] for word in wanted[1:] if word.endswith("gb") and word[:-2].isdigit()]
    return replace(found, memory=float(sizes[0]) * GIGA) if sizes else found

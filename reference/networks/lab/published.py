"""What others have measured on machines that few of us have: NCCL's all-reduce over size, and beside its halves.

Bus bandwidth in GB/s (1e9 bytes per second), as nccl-tests defines it, by bytes of the tensor on each GPU. Measured and
published by Stas Bekman, github.com/stas00/ml-engineering, network/README.md, as of commit 744d01e.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reference.trace import Op

MACHINES = ("8 A100", "8 H200", "32 B200")
"""One node with NVLink 3; one node with NVLink 4, whose switch adds (NVLS); four nodes with 400 Gbit/s for each GPU."""

_TABLE = """
      32768     1.31     1.44     0.01
      65536     2.45     2.93     0.04
     131072     4.43     5.73     0.45
     262144     7.47    11.74     1.33
     524288    11.41    23.94     2.84
    1048576     18.0    39.93     5.37
    2097152    36.18    64.53    10.38
    4194304    72.33   107.16     18.9
    8388608   109.93   155.53    35.12
   16777216   106.16   219.89    64.43
   33554432   138.49   275.84    91.19
   67108864   171.54   346.51   156.74
  134217728   176.92   401.93   197.94
  268435456   194.07   436.15   229.09
  536870912   222.72   450.29    326.9
 1073741824   229.04   463.58   361.99
 2147483648   231.41   469.17   372.42
 4294967296   233.88    473.1   377.34
 8589934592   234.61   477.45   380.39
17179869184   234.89   482.26    381.8
"""


@dataclass(frozen=True)
class MeasuredNodes:
    """An all-reduce of a large tensor on several nodes of eight GPUs. Bandwidths in bytes per second, one direction."""

    gpu: str
    nodes: int
    nvlink: float  # of each GPU, as sold
    nic: float  # of each NIC, as sold
    nics: int  # of each node
    busbw: float  # measured
    source: str


_EKMAN = "stas00/ml-engineering, network/README.md"
NODES = (
    MeasuredNodes("H800", 2, 200e9, 12.5e9, 8, 161e9, "NVIDIA/nccl-tests#153"),
    MeasuredNodes("H800", 4, 200e9, 12.5e9, 8, 80e9, "NVIDIA/nccl-tests#160"),
    MeasuredNodes("H200", 4, 450e9, 50e9, 8, 364.87e9, _EKMAN),
    MeasuredNodes("B200", 4, 900e9, 50e9, 8, 381.8e9, _EKMAN),
    MeasuredNodes("A100", 1, 300e9, 25e9, 8, 234.89e9, _EKMAN),
    MeasuredNodes("H200", 1, 450e9, 50e9, 8, 367.2e9, _EKMAN + ", without NVLS"),
    MeasuredNodes("B200", 1, 900e9, 50e9, 8, 682.2e9, _EKMAN + ", without NVLS"),
)
"""What NCCL was measured at with an algorithm of its choice, but for NVLS. The report of 4 nodes with all NICs does not
name their GPUs: they are taken to be like those of the other report. NVLSTree, if forced, gave 310 GB/s
on 4 H200 nodes."""

RINGS: Mapping[Op, float] = MappingProxyType(
    {Op.ALL_REDUCE: 367.2e9, Op.ALL_GATHER: 361.4e9, Op.REDUCE_SCATTER: 362.9e9}
)
"""Bus bandwidths of rings on 8 H200, in bytes per second, with 16 GiB (the source of the table).

The all-reduce is with NVLS switched off. The other two have no such switch: NVLS adds up all-reduces and nothing else.
So this is what FSDP and ZeRO get, and `bus_bandwidths("8 H200")` is not.
"""


def bus_bandwidths(machine: str) -> list[tuple[int, float]]:
    """(bytes of the tensor on each GPU, bus bandwidth in bytes per second), small tensors first.

    Args:
        machine: one of `MACHINES`.
    """
    rows = [line.split() for line in _TABLE.strip().splitlines()]
    return [(int(row[0]), 1e9 * float(row[1 + MACHINES.index(machine)])) for row in rows]

"""How much memory GPUs have.

Gathered by Stas Bekman, github.com/stas00/ml-engineering, compute/accelerator/README.md, as of commit 744d01e; the
V100 from NVIDIA's data sheet. In units of 1e9 bytes, with the numbers that GPUs are sold by. Those of 80 GB hold a few
percent more (an H100 81,559 MiB, 85.5e9 bytes), which the driver, the libraries and the allocator's fragments take.
"""

from collections.abc import Mapping
from types import MappingProxyType

GB = 10**9

GPUS: Mapping[str, int] = MappingProxyType(
    {
        "V100 SXM2": 32 * GB,
        "A100 SXM": 80 * GB,
        "H100 SXM": 80 * GB,
        "H200 SXM": 141 * GB,
        "B200 SXM": 180 * GB,
        "GB200 SXM": 186 * GB,
        "B300 SXM": 288 * GB,
    }
)
"""Bytes of memory, by name."""

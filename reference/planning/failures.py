"""How often GPUs take a training down: counts that were published, and what follows from them for other sizes.

If each of n GPUs fails independently, at a rate that does not change, then failures of the whole come n times as often:

    mean time between failures (MTBF) of n GPUs  =  MTBF of one GPU / n

where a GPU stands for its share of everything else that can fail: host, network, storage, software.

At 1,024 GPUs Kokolis et al. measured 7.9 hours, a fourth of what the rate of their nodes says: there, jobs fail for
more reasons than hardware. What is published is a cluster's, in one year, and no constant of nature.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reference.errors import BadInput

from .layouts import Column

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365.25 * 86_400.0  # seconds


@dataclass(frozen=True)
class FailureRecord:
    """Failures of one cluster over some time.

    Attributes:
        gpu_days: GPUs, times the days for which they were watched.
        causes: how many failures had which cause; a rate need not be a whole number.
        source: where it was published.

    Raises:
        BadInput: if there was no time, or no failure.
    """

    gpu_days: float
    causes: Mapping[str, float]
    source: str

    def __post_init__(self) -> None:
        if not (self.gpu_days > 0 and self.failures > 0):
            raise BadInput("a record has GPU-days and failures, both above 0: without them it says nothing of a rate")

    @property
    def failures(self) -> float:
        """Of all causes."""
        return sum(self.causes.values())

    @property
    def gpu_mtbf(self) -> float:
        """Mean time between failures of one GPU, in seconds."""
        return self.gpu_days * DAY / self.failures

    def share(self, cause: str) -> float:
        """Of all failures, from 0 to 1. Raises BadInput for a cause that was not counted."""
        if cause not in self.causes:
            raise BadInput(f"no failure was put down to {cause!r}: there are {', '.join(self.causes)}")
        return self.causes[cause] / self.failures


def mtbf(gpu_mtbf: Column, gpus: Column) -> Column:
    """Seconds between two failures of `gpus` GPUs that fail independently, in the mean.

    Args:
        gpu_mtbf: of one GPU, in seconds.
        gpus: n, a number or a column.

    Raises:
        BadInput: if there is no GPU.
    """
    if not np.all(np.greater_equal(gpus, 1)):
        raise BadInput("a training has 1 GPU or more")
    return gpu_mtbf / gpus


LLAMA3 = FailureRecord(
    gpu_days=54 * 16_384,
    causes={
        "faulty GPU": 148,
        "GPU's HBM3": 72,
        "software bug": 54,
        "switch or cable": 35,
        "host maintenance": 32,
        "GPU's SRAM": 19,
        "GPU's system processor": 17,
        "network card": 7,
        "NCCL watchdog": 7,
        "silent data corruption": 6,
        "GPU's cooling or sensor": 6,
        "SSD": 3,
        "power supply": 3,
        "server chassis": 2,
        "IO board": 2,
        "dependency": 2,
        "CPU": 2,
        "system memory": 2,
    },
    source="Llama team 2024, arXiv:2407.21783, sec. 3.3.4 and table 5: unexpected interruptions on H100s",
)
"""The table prints 30.1 % for faulty GPUs; 148 of 419 are 35.3 %, and its other shares agree with its counts."""

RSC1 = FailureRecord(
    gpu_days=8 * 1000,
    causes={"node": 6.50},
    source="Kokolis et al. 2024, arXiv:2410.21680: failures in 1,000 node-days of 8 A100s",
)

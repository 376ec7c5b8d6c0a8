"""What is to be trained, and on what: everything of a prediction that no layout changes."""

from dataclasses import dataclass
from enum import StrEnum

from reference.errors import BadInput
from reference.models.config import GPTConfig

from .hardware import MOST, GpuCluster


class AttentionKernel(StrEnum):
    """How attention's matrix of scores, tokens x tokens, is treated."""

    FLASH = "flash"  # tile by tile, and never in memory (Dao et al. 2022)
    WRITTEN = "written"  # written to memory and read again, dropout and all, as before


class Numbers(StrEnum):
    """In which numbers matrices are multiplied."""

    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True)
class Job:
    """A model, a cluster, and the batch of a step.

    Args:
        model: a GPT's or a mixture's configuration.
        cluster: that is to train it.
        sequence: tokens of a window.
        batch: windows of a step, of all ranks together.
        numbers: of matrix products.
        attention: whether scores are written to memory.

    Raises:
        BadInput: if the batch is empty, or too large.
    """

    model: GPTConfig
    cluster: GpuCluster
    sequence: int
    batch: int
    numbers: Numbers = Numbers.BF16
    attention: AttentionKernel = AttentionKernel.FLASH

    def __post_init__(self) -> None:
        if min(self.sequence, self.batch) < 1:
            raise BadInput(f"a step has 1 window or more, of 1 token or more, not {self.batch} of {self.sequence}")
        if max(self.sequence, self.batch) > MOST:
            raise BadInput(f"windows and their tokens are {MOST:,} at most, not {self.batch} of {self.sequence}")

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.sequence

"""What a run can choose in the chapter on memory, as words, which a command line knows without torch."""

from enum import StrEnum


class Recompute(StrEnum):
    """What is made again in backward instead of being kept. See `reference.memory.recompute`."""

    NONE = "none"
    SELECTIVE = "selective"  # what is large and cheap: attention's core, norms, the product inside the SwiGLU
    FULL = "full"  # everything inside a block; its input alone is kept


class Offload(StrEnum):
    """Where the optimizer's state lives. See `reference.memory.offload_targets`."""

    NONE = "none"  # where the parameters are
    CPU = "cpu"
    DISK = "disk"


class PrecisionName(StrEnum):
    """In which numbers a model is trained. What each name means stands in `reference.memory.precision`."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP64 = "fp64"

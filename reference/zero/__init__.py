"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters."""

from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage
from .unit import units_of

__all__ = ["FullySharded", "Sharded", "ZeroStage", "units_of"]

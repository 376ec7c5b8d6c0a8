"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters."""

from .choice import units_of
from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage

__all__ = ["FullySharded", "Sharded", "ZeroStage", "units_of"]

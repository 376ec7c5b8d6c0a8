"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters."""

from .fully_sharded import FullySharded
from .sharded import Sharded, Stage
from .unit import units_of

__all__ = ["FullySharded", "Sharded", "Stage", "units_of"]

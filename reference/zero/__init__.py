"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters."""

from .elementwise import require_elementwise
from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage
from .unit import units_of

__all__ = ["FullySharded", "Sharded", "ZeroStage", "require_elementwise", "units_of"]

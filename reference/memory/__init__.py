"""What a training run keeps in memory, as formulas and as measured, and the ways to keep less."""

from reference.memory.lab.gauge import CUDA_GRAIN, Gauge

from .accumulation import accumulate, micro_batches
from .activation_offload import offload_activations
from .gpus import GPUS
from .history import KINDS, History, Kind, Mark
from .loss_scaling import LossScaler, NoScaler, scaler_of
from .offload import Folder, Home, Memory, Offload, OffloadedOptimizer, home_of, move_home
from .precision import PRECISIONS, MasterWeights, Precision
from .recipe import RECIPES, Breakdown, Recipe, Stage, fewest_ranks, fits, largest_model, shard, state_bytes
from .recompute import Recompute, recomputed
from .saved import Saved, saved_tensors
from .workload import Workload

__all__ = [
    "CUDA_GRAIN",
    "GPUS",
    "KINDS",
    "PRECISIONS",
    "RECIPES",
    "Breakdown",
    "Folder",
    "Gauge",
    "History",
    "Home",
    "Kind",
    "LossScaler",
    "Mark",
    "MasterWeights",
    "Memory",
    "NoScaler",
    "Offload",
    "OffloadedOptimizer",
    "Precision",
    "Recipe",
    "Recompute",
    "Saved",
    "Stage",
    "Workload",
    "accumulate",
    "fewest_ranks",
    "fits",
    "home_of",
    "largest_model",
    "micro_batches",
    "move_home",
    "offload_activations",
    "recomputed",
    "saved_tensors",
    "scaler_of",
    "shard",
    "state_bytes",
]

"""What a training run keeps in memory, as formulas and as measured, and the ways to keep less."""

from .gauge import CUDA_GRAIN, Gauge
from .gpus import GPUS
from .history import KINDS, History, Kind, Mark
from .recipe import RECIPES, Breakdown, Recipe, Stage, fewest_ranks, fits, largest_model, shard, state_bytes
from .saved import Saved, saved_tensors

__all__ = [
    "CUDA_GRAIN",
    "GPUS",
    "KINDS",
    "RECIPES",
    "Breakdown",
    "Gauge",
    "History",
    "Kind",
    "Mark",
    "Recipe",
    "Saved",
    "Stage",
    "fewest_ranks",
    "fits",
    "largest_model",
    "saved_tensors",
    "shard",
    "state_bytes",
]

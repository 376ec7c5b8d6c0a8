"""Which compressor a run has, by the words of its `TrainConfig`."""

from functools import partial

import torch

from reference.choices import MOMENTUM_TRAVELS, Compress
from reference.config import TrainConfig

from .cosines import DeMo
from .low_rank import PowerSGD
from .memory import HalfPrecision, MakeCompressor
from .one_bit_adam import Momenta, MomentumSum
from .signs import MajorityVote, OneBit
from .sparse import RandomK, TopK


def compressor_of(config: TrainConfig, momenta: Momenta) -> MakeCompressor | None:
    """What makes the compressor of ranks that hold the same parameters; None where gradients are sent as they are.

    Args:
        config: of the run.
        momenta: of its optimizer, which is attached later.
    """
    if config.optimizer in MOMENTUM_TRAVELS:
        return partial(MomentumSum, momenta=momenta)
    makers: dict[Compress, MakeCompressor | None] = {
        Compress.NONE: None,
        Compress.BF16: partial(HalfPrecision, dtype=torch.bfloat16),
        Compress.FP16: partial(HalfPrecision, dtype=torch.float16),
        Compress.ONE_BIT: OneBit,
        Compress.TOP_K: partial(TopK, share=config.compress_share),
        Compress.RANDOM_K: partial(RandomK, share=config.compress_share, seed=config.seed),
        Compress.POWER_SGD: partial(PowerSGD, rank=config.compress_rank, seed=config.seed),
        Compress.DEMO: DeMo,
        Compress.MAJORITY_VOTE: MajorityVote,
    }
    return makers[config.compress]


def compression_of(config: TrainConfig) -> str:
    """The same in words, for a checkpoint: a run that resumes must continue alike."""
    match config.compress:
        case Compress.POWER_SGD:
            return f"{config.compress} {config.compress_rank}"
        case Compress.TOP_K | Compress.RANDOM_K:
            return f"{config.compress} {config.compress_share}"
    return str(config.compress if config.compress is not Compress.NONE else config.optimizer)

"""The models that every chapter shards, free of parallel code, and the text that they read."""

from reference.models.config import PRESETS, GPTConfig, preset
from reference.models.encoder import Encoder, EncoderConfig
from reference.models.gpt import GPT, token_loss
from reference.models.initialisation import create, initial_value, materialise
from reference.models.kinds import architecture
from reference.models.stack import ModelConfig, Stack

__all__ = [
    "GPT",
    "PRESETS",
    "Encoder",
    "EncoderConfig",
    "GPTConfig",
    "ModelConfig",
    "Stack",
    "architecture",
    "create",
    "initial_value",
    "materialise",
    "preset",
    "token_loss",
]

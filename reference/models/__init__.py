"""The models that every chapter shards, free of parallel code, and the text that they read.

| read                                       | for                                                               |
|--------------------------------------------|-------------------------------------------------------------------|
| `stack`, `ops`, `layout`                   | what a strategy may ask of a model                                |
| `gpt` with `config`; `encoder`             | two models; `kinds` knows which configuration is of which         |
| `objective`, `data`, `files`               | what they are to predict, and of which text                       |
| `initialisation`, `dropout`                | numbers that follow from names, and not from the layout           |
| `rms_norm`, `one_kernel`, `sample`         | a norm, chains of operations in one kernel, and text from a model |
"""

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

"""The models that every chapter shards, free of parallel code, and the text that they read.

| read                                       | for                                                               |
|--------------------------------------------|-------------------------------------------------------------------|
| `stack`, `ops`, `layout`                   | what a strategy may ask of a model                                |
| `gpt` with `config`; `encoder`             | two models; `kinds` knows which configuration is of which         |
| `moe` with `moe_config`; `routing`         | a GPT with experts, and how its router chooses                    |
| `by_expert`, `grouped`                     | tokens in the order of their experts, and products of groups      |
| `objective`, `data`, `files`               | what they are to predict, and of which text                       |
| `initialisation`, `dropout`                | numbers that follow from names, and not from the layout           |
| `rms_norm`, `one_kernel`, `sample`         | a norm, chains of operations in one kernel, and text from a model |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reference.models.config import PRESETS, GPTConfig, preset, require_gpt

if TYPE_CHECKING:
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
    "require_gpt",
    "token_loss",
]
_WITH_TORCH = {
    "GPT": "gpt",
    "Encoder": "encoder",
    "EncoderConfig": "encoder",
    "ModelConfig": "stack",
    "Stack": "stack",
    "architecture": "kinds",
    "token_loss": "gpt",
    "create": "initialisation",
    "initial_value": "initialisation",
    "materialise": "initialisation",
}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: a command line knows the sizes of models at once."""
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)

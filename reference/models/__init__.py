"""The models that every chapter shards, free of parallel code, and the text that they read."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reference.models.config import PRESETS, GPTConfig, preset

if TYPE_CHECKING:
    from reference.models.gpt import GPT, token_loss
    from reference.models.initialisation import create, initial_value, materialise

__all__ = [
    "GPT",
    "PRESETS",
    "GPTConfig",
    "create",
    "initial_value",
    "materialise",
    "preset",
    "token_loss",
]
_WITH_TORCH = {
    "GPT": "gpt",
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

"""Which model a configuration is of."""

from collections.abc import Mapping
from types import MappingProxyType

from reference.errors import BadInput

from .config import GPTConfig
from .encoder import Encoder, EncoderConfig
from .gpt import GPT
from .moe import MoE
from .moe_config import MoEConfig
from .stack import ModelConfig, Stack

KINDS: Mapping[type, type[Stack]] = MappingProxyType({GPTConfig: GPT, EncoderConfig: Encoder, MoEConfig: MoE})


def architecture(config: ModelConfig) -> Stack:
    """The model of a configuration, as `create` builds it.

    Raises:
        BadInput: if no model is built so.
    """
    if type(config) not in KINDS:
        raise BadInput(f"no model is built of a {type(config).__name__}: {', '.join(kind.__name__ for kind in KINDS)}")
    return KINDS[type(config)](config)

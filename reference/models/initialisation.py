"""Initial weights that depend on a parameter's name, and on nothing else.

Drawing all weights from one stream of random numbers makes the model depend on the layout: a rank that holds half of
the layers has drawn half of the numbers. Here each parameter has a stream of its own, seeded by its name. So a
stage, a shard or a replica on any device starts from the very numbers that one process would have, and "equal to one
process" can be tested exactly.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn


class HasLayers(Protocol):
    """A configuration that knows its depth."""

    @property
    def layers(self) -> int: ...


Model = TypeVar("Model", bound=nn.Module)
Config = TypeVar("Config", bound=HasLayers)
RESIDUAL = (".output.weight", ".down.weight")  # these write into the residual stream


def initial_value(name: str, shape: torch.Size, layers: int, seed: int) -> Tensor:
    """The values that the parameter called `name` starts with, in float32 on the CPU.

    Gains of norms are one, biases zero. Everything else is normal with a standard deviation of 0.02, and those which
    write into the residual stream are smaller by sqrt(2 L), so that its variance does not grow with depth (GPT-2,
    Radford et al. 2019). A shard is a slice of this.

    Args:
        name: as `named_parameters` of the whole model says it.
        shape: of the whole parameter, not of a shard.
        layers: L of the whole model.
        seed: of the run.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    deviation = 0.02 / math.sqrt(2 * layers) if name.endswith(RESIDUAL) else 0.02
    return torch.randn(shape, generator=generator) * deviation


@torch.no_grad()
def materialise(model: nn.Module, value: Callable[[str, torch.Size], Tensor], device: torch.device | str) -> None:
    """Give every parameter of a model on the meta device memory and its value, in place.

    Args:
        model: whose parameters have shapes and dtypes, and no memory.
        value: of a parameter, by its name and shape.
        device: where the parameters shall be.
    """
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        parameter.copy_(value(name, parameter.shape))


def create(
    architecture: Callable[[Config], Model],
    config: Config,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Build a model with its initial weights, without drawing a number that is not used.

    Args:
        architecture: makes a model of a configuration, such as the class `GPT`; called where tensors have no memory.
        config: of the model.
        seed: of the run.
        device: where the weights shall be; "meta" leaves them without values.
        dtype: of the weights.
    """
    with torch.device("meta"):
        model = architecture(config).to(dtype)
    if torch.device(device).type == "meta":
        return model
    materialise(model, partial(initial_value, layers=config.layers, seed=seed), device)
    return model

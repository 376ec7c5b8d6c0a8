"""A GPT that is split by hand, with any region: what `parallelize` does, step by step."""

from functools import partial

import torch

from reference.memory.recompute import Recompute, recompute
from reference.models import GPT, GPTConfig, create, initial_value, materialise
from reference.sharding import Placement
from reference.tensor_parallel import Region, parallelize_layers, placements, split_parameters


def split_gpt(
    config: GPTConfig,
    region: Region,
    how: Recompute = Recompute.NONE,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> tuple[GPT, dict[str, Placement]]:
    """This rank's part of a GPT that computes in `region`, and where its parameters are."""
    model = create(GPT, config, device="meta", dtype=dtype)
    placed = placements(model, region.rank, region.ranks)
    split_parameters(model, placed)
    if device != "meta":
        materialise(model, partial(value_of_block, placed, config), device)
    parallelize_layers(model, region)
    recompute(model, how)
    return model, placed


def value_of_block(placed: dict[str, Placement], config: GPTConfig, name: str, shape: torch.Size) -> torch.Tensor:
    """What a block of a parameter starts with; its shape follows from where it is."""
    return placed[name].cut(initial_value(name, placed[name].shape, config.layers, seed=0))

"""What a checkpoint holds of a form's memory, such as what ranks did not send of gradients.

On as many ranks as before each takes back its own, to the last bit. On others, values of several holders are added up,
so what all ranks together did not send stays what it was. See `reference.data_parallel.remembered`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import GradientSync, ParameterShard
from reference.data_parallel.remembered import About

from .checkpoint_state import SavedParameter, saved_parts
from .chunk import Chunk

Room = dict[str, Chunk]


def held_parts(form: GradientSync, optimizer: Optimizer) -> list[ParameterShard]:
    """All that this rank saves: masters, what it has for whole matrices, and what the form remembers."""
    return [*saved_parts(form, optimizer), *(each.as_saved() for each in form.remembered)]


def rooms(form: GradientSync, saved: Mapping[str, SavedParameter]) -> list[Room]:
    """Room on the CPU for what this rank is to load, for each thing that it remembers."""
    return [
        {
            f"master.{key}": Chunk(part, torch.zeros(part.end - part.begin, dtype=getattr(torch, saved[key].dtype)))
            for key, part in each.as_loaded(saved).items()
            if part.begin < part.end
        }
        for each in form.remembered
    ]


def install(form: GradientSync, loaded: list[Room]) -> None:
    """Remember what was loaded. What no checkpoint has of elements is zero; all else is as it is in the beginning."""
    for each, room in zip(form.remembered, loaded, strict=True):
        if room:
            values: Any = sum(chunk.held for chunk in room.values())
            each.values.copy_(values.view_as(each.values))
        elif each.about is About.ELEMENTS:
            each.values.zero_()

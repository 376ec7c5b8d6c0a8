"""Every form that shards, for the trainings of `tests.data_parallel.training`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from reference.models import initial_value
from reference.zero import FullySharded, Sharded, ZeroStage

from ..data_parallel.conftest import members
from ..data_parallel.training import BUCKET, Case, Make


def by_halves(model: nn.Module, group: ProcessGroup, **options: Any) -> FullySharded:
    """Units of one's own: each half of each block. Norms and embedding are left over, and the head is a unit."""
    halves = [[half] for block in model.blocks for half in (block.attention, block.feed_forward)]
    return FullySharded(model, group, units=[*halves, [model.head]], **options)


def within_units(model: nn.Module, group: ProcessGroup, **options: Any) -> FullySharded:
    """Units within units: the halves of each block, and what they leave of it."""
    nested = [[module] for block in model.blocks for module in (block.attention, block.feed_forward, block)]
    return FullySharded(model, group, units=[[model.embedding], *nested], **options)


def one_unit(model: nn.Module, group: ProcessGroup, **options: Any) -> FullySharded:
    """The whole model in one unit."""
    return FullySharded(model, group, units=[[model]], **options)


def from_meta(model: nn.Module, group: ProcessGroup, **options: Any) -> FullySharded:
    """A GPT without values; each rank asks for those of its shards."""
    value = partial(initial_value, layers=model.config.layers, seed=0)
    return FullySharded(model.to("meta"), group, value=value, device=torch.device("cpu"), **options)


STAGES: Mapping[str, Make] = MappingProxyType(
    {
        "ZeRO-1": partial(Sharded, stage=ZeroStage.OPTIMIZER, bucket_bytes=BUCKET),
        "ZeRO-2": partial(Sharded, stage=ZeroStage.GRADIENTS, bucket_bytes=BUCKET),
        "ZeRO-2, one bucket": partial(Sharded, stage=ZeroStage.GRADIENTS),
    }
)
FULLY: Mapping[str, Make] = MappingProxyType(
    {
        "FSDP": FullySharded,
        "FSDP, gathered once": partial(FullySharded, reshard_after_forward=False),
        "FSDP, no prefetch": partial(FullySharded, prefetch=False),
        "FSDP, gathered once, no prefetch": partial(FullySharded, reshard_after_forward=False, prefetch=False),
        "FSDP in one unit": one_unit,
    }
)
OF_A_GPT: Mapping[str, Make] = MappingProxyType(
    {
        "FSDP by halves": by_halves,
        "FSDP within units": within_units,
        "FSDP within units, gathered once": partial(within_units, reshard_after_forward=False),
        "FSDP from meta": from_meta,
    }
)
FORMS: Mapping[str, Make] = MappingProxyType({**STAGES, **FULLY, **OF_A_GPT})


def in_mesh(replicas: int, shards: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    """To be run on every rank: `fn(group, rows, columns, *arguments)` on the members of a mesh, None on the others.

    Args:
        replicas, shards: its shape. Neighbours share a replica.
        fn: is given all members, those of this rank's replica, and those that hold the same shard.
    """
    mesh = torch.tensor(members(replicas * shards)).view(replicas, shards)
    lines = [mesh.flatten().tolist(), *mesh.tolist(), *mesh.T.tolist()]
    made = [dist.new_group(line) for line in lines]  # by all ranks in one order
    mine = [group for group, line in zip(made, lines, strict=True) if dist.get_rank() in line]
    return fn(*mine, *arguments) if mine else None


def hybrid(make: Make, row: ProcessGroup, column: ProcessGroup) -> Make:
    """Sharded along a row, replicated along a column."""
    return lambda model, group, **options: make(model, row, replicas=column, **options)


def hybrids(
    group: ProcessGroup, row: ProcessGroup, column: ProcessGroup, fn: Callable[..., Any], cases: Sequence[Case]
) -> Any:
    """`fn(group, cases)`, where the cases are laid out on a mesh."""
    return fn(group, [replace(case, make=hybrid(case.make, row, column)) for case in cases])

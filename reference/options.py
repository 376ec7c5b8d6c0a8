"""What a person can ask of a training run, as words: the same for `rankwise train` and for `torchrun`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import preset
from reference.parallelize import DataParallelism, PipelineSchedule, Plan

Choice = TypeVar("Choice", bound=StrEnum)


def configure(
    *,
    model: str,
    data: str | None,
    steps: int,
    batch: int,
    sequence: int,
    learning_rate: float,
    dropout: float,
    seed: int,
    data_parallel: str,
    dp_replicate: int | None,
    tensor_parallel: int,
    sequence_parallel: bool,
    async_tensor_parallel: bool,
    pipeline_parallel: int,
    schedule: str,
    stages_per_rank: int | None,
    micro_batches: int,
    recompute: str,
    precision: str,
    offload: str,
) -> tuple[TrainConfig, Plan]:
    """What to learn, and how to lay it out.

    Raises:
        BadInput: if a word or a number cannot be understood, with what would be.
    """
    if precision not in PRECISIONS:
        raise BadInput(f"--precision is one of {', '.join(PRECISIONS)}, not {precision}")
    config = TrainConfig(
        replace(preset(model), dropout=dropout),
        data,
        steps,
        batch=batch,
        sequence=sequence,
        learning_rate=learning_rate,
        seed=seed,
        precision=PRECISIONS[precision],
    )
    plan = Plan(
        choose(DataParallelism, data_parallel, "--data-parallel"),
        micro_batches,
        choose(Recompute, recompute, "--recompute"),
        choose(Offload, offload, "--offload"),
        dp_replicate=dp_replicate,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        async_tensor_parallel=async_tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        schedule=choose(PipelineSchedule, schedule, "--schedule"),
        stages_per_rank=stages_per_rank,
    )
    return config, plan


BELONGS_TO = {
    "dp_replicate": ("data_parallel",),
    "sequence_parallel": ("tensor_parallel",),
    "async_tensor_parallel": ("tensor_parallel",),
    "schedule": ("pipeline_parallel",),
    "stages_per_rank": ("pipeline_parallel", "schedule"),
}
"""Options that mean something beside others alone: they are not taken over where one of those is another now."""


def completed(options: Mapping[str, Any], given: Collection[str], stored: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a run: those given, the others as the run that it goes on from had them, or else by default.

    Args:
        options: all of them, by name.
        given: names of those that were given.
        stored: the options in a checkpoint; empty for a run that begins, and for a checkpoint that does not have them.
    """
    anew = {name for name in given if name in options and options[name] != stored.get(name)}
    taken_over = {
        name: value
        for name, value in stored.items()
        if name in options and name not in given and anew.isdisjoint(BELONGS_TO.get(name, ()))
    }
    return {**options, **taken_over}


def choose(kind: type[Choice], word: str, option: str) -> Choice:
    """The member of `kind` that is called `word`.

    Raises:
        BadInput: if there is none.
    """
    if word not in list(kind):
        raise BadInput(f"{option} is one of {', '.join(kind)}, not {word}")
    return kind(word)

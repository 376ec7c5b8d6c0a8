"""What a person can ask of a training run, as words: the same for `rankwise train` and for `torchrun`."""

from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from reference.errors import BadInput
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import preset
from reference.parallelize import Form, Order, Plan
from reference.train import TrainConfig

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
    replicas: int | None,
    tensor_parallel: int,
    sequence_parallel: bool,
    async_tensor_parallel: bool,
    pipeline_parallel: int,
    schedule: str,
    chunks: int | None,
    accumulate: int,
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
        choose(Form, data_parallel, "--data-parallel"),
        accumulate,
        choose(Recompute, recompute, "--recompute"),
        choose(Offload, offload, "--offload"),
        replicas=replicas,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        async_tensor_parallel=async_tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        order=choose(Order, schedule, "--schedule"),
        chunks=chunks,
    )
    return config, plan


def choose(kind: type[Choice], word: str, option: str) -> Choice:
    """The member of `kind` that is called `word`.

    Raises:
        BadInput: if there is none.
    """
    if word not in list(kind):
        raise BadInput(f"{option} is one of {', '.join(kind)}, not {word}")
    return kind(word)

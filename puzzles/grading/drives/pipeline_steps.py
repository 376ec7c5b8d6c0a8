"""Drives for programs of a whole step of a pipeline: they stand for stages, and for the ranks that are not there."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from reference.pipeline_parallel.schedule import Action, Kind

from ..overlap import Work
from . import group_of

UNITS = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}
"""How long actions take, in units of the time of a forward."""


def with_stages_that_take_time(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it `compute`, which does an action, and `gradients`, a tensor of zeros for each stage.

    The argument `parts` has the gradient that each stage finds in each micro-batch, by stage and micro-batch, `seconds`
    how long a forward takes on the model's clock. Compare what was computed, and all gradients. The function has a dict
    of its own: what counts is what it does to the tensors.
    """
    parts, seconds = arguments.pop("parts"), arguments.pop("seconds")
    work, computed = Work(), []
    gradients = {stage: torch.zeros_like(part) for (stage, _), part in parts.items()}

    def compute(action: Action) -> None:
        kind, stage, micro_batch = action
        work(seconds * UNITS[kind])
        computed.append(str(action))
        if kind in (Kind.BACKWARD, Kind.WEIGHT):
            gradients[stage] += parts[stage, micro_batch]

    returned = function(**arguments, compute=compute, gradients=dict(gradients))
    found = {f"gradients[{stage}]": gradient for stage, gradient in gradients.items()}
    return {"what was computed": " ".join(computed), **found, "returns": returned, **work.notes}


def on_a_mesh(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with three groups: `pipeline`, `data`, and `ends`, the first and last rank of a pipeline.

    The argument `replicas` says how many pipelines there are; those of one stage stand side by side. `parameters` is a
    dict by name. Compare what it returns, and all parameters by their names. The function has a dict of its own: what
    counts is what it does to the tensors.
    """
    parameters, replicas = arguments.pop("parameters"), arguments.pop("replicas")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage, replica = divmod(rank, replicas)
    pipeline = range(replica, ranks, replicas)
    ends = sorted({pipeline[0], pipeline[-1]})
    groups = {
        "data": group_of(range(stage * replicas, (stage + 1) * replicas)),
        "pipeline": group_of(pipeline),
    }
    of_ends = group_of(ends if rank in ends else [rank])  # on each rank as many groups: torch's names follow from that
    returned = function(parameters=dict(parameters), **arguments, **groups, ends=of_ends if rank in ends else None)
    return {**parameters, "returns": returned}

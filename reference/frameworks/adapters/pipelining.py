"""torch.distributed.pipelining: stages of blocks, and a schedule that says who computes what when.

Two stages for `gpipe` and `1f1b`, four for `interleaved`, `zbv` and `dualpipev`: two on each rank, in a loop (0 2, 1 3)
or in a V (0 3, 1 2). `ScheduleGPipe` and others divide gradients by the number of micro-batches, as the mean asks.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from reference.frameworks.plain import Course
from reference.models import create
from reference.pipeline_parallel.stages import pieces_of, stage_of

KINDS = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
MICRO_BATCHES = 4  # ScheduleDualPipeV wants two for each rank, or more


def losses(course: Course, feature: str) -> Iterator[float | None]:
    """One of `KINDS`. Only the rank with the last stage knows the loss."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers = placed(feature, rank, ranks)
    count = ranks * len(numbers)
    device, pieces = torch.device("cpu"), pieces_of(course.config, count)
    parts = [partial(stage_of, blocks=pieces[number]) for number in numbers]
    modules = [create(part, course.config, course.seed, dtype=course.dtype) for part in parts]
    stages = [PipelineStage(module, number, count, device) for number, module in zip(numbers, modules, strict=True)]
    optimizer = course.optimizer([p for module in modules for p in module.parameters()])
    kind = KINDS[feature]
    schedule = kind(stages if len(stages) > 1 else stages[0], MICRO_BATCHES, loss_fn=course.loss)
    for step in range(course.steps):
        tokens, targets = course.read(step)
        of_micro_batches: list[Tensor] = []
        optimizer.zero_grad()
        given = (tokens,) if 0 in numbers else ()
        last = {"target": targets, "losses": of_micro_batches} if count - 1 in numbers else {}
        schedule.step(*given, **last)
        optimizer.step()
        yield torch.stack(of_micro_batches).mean().item() if of_micro_batches else None


def placed(feature: str, rank: int, ranks: int) -> list[int]:
    """The stages of a rank."""
    if feature in ("gpipe", "1f1b"):
        return [rank]
    return [rank, rank + ranks] if feature == "interleaved" else [rank, 2 * ranks - 1 - rank]

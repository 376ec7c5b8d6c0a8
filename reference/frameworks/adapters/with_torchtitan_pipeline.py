"""TorchTitan's pipeline: `pipeline_llm` cuts its model by the names of modules, and builds torch's schedule.

Liang et al. 2024, arXiv:2410.06511. Its first and its last stage count embedding and head as a layer each, and so both
have two of four layers. Losses of micro-batches are summed, divided by the tokens of all of them: `scale_grads=False`.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from reference.frameworks.plain import Course

MICRO_BATCHES = 4
SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def losses(course: Course, feature: str) -> Iterator[float | None]:
    """A key of `SCHEDULES`. Only the rank with the last stage knows the loss."""
    torch._utils._get_available_device_type = lambda: "cpu"  # else it takes "cuda", also where there is none
    from torchtitan.distributed.pipeline_parallel import pipeline_llm
    from torchtitan.models.qwen3 import parallelize_qwen3

    from reference.frameworks.adapters import torchtitan_model

    degrees = {"pipeline_parallel_degree": dist.get_world_size()}
    degrees |= {"pipeline_parallel_schedule": SCHEDULES[feature]}
    degrees |= {"pipeline_parallel_microbatch_size": course.batch // MICRO_BATCHES}
    model, given = torchtitan_model.prepared(course, dist.get_world_size(), **degrees)

    def loss_of(logits: Tensor, targets: Tensor) -> tuple[Tensor, dict]:
        return course.loss(logits, targets) / MICRO_BATCHES, {}

    schedule, parts, is_first, is_last = pipeline_llm(
        model,
        **given,
        device=torch.device("cpu"),
        model_config=torchtitan_model.qwen(course),
        parallelize_fn=parallelize_qwen3,
        loss_fn=loss_of,
    )
    optimizer = course.optimizer(parameter for part in parts for parameter in part.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step)
        of_micro_batches: list[Tensor] = []
        optimizer.zero_grad()
        last = {"target": targets, "losses": of_micro_batches} if is_last else {}
        positions = torch.arange(course.sequence).expand_as(tokens)
        schedule.step(*([tokens] if is_first else []), positions=positions, **last)
        optimizer.step()
        yield torch.stack(of_micro_batches).sum().item() if is_last else None

"""Megatron Core's own GPT with our weights: tensor parallelism, pipelines, experts, and the distributed optimizer.

Narayanan et al. 2021, arXiv:2104.04473. Its layers are those that it calls local, without Transformer Engine. It asks
for GPUs where nothing needs one: `gpt` and `distributed` end there, and the others are told that the CPU is one. `cp`
and `experts` end where they ask for Transformer Engine: `cp-ring` has torch's ring in its place, and for experts one
name is enough.
"""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.moe import moe_utils
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, nn

from reference.frameworks.adapters import as_gpu
from reference.frameworks.adapters.megatron_model import SIZES, chunk_of, config_of
from reference.frameworks.plain import Course


def losses(course: Course, feature: str) -> Iterator[float | None]:
    """A key of `megatron_model.SETTINGS`, or `distributed...`. Only ranks with the last stage know the loss."""
    if feature != "gpt":
        as_gpu.pretend(types=feature != "distributed")
    if feature != "experts":
        moe_utils.te_general_gemm = None
    config = config_of(course, feature)
    parallel_state.initialize_model_parallel(**{name: getattr(config, name) for name in SIZES})
    stages = range(config.virtual_pipeline_model_parallel_size or 1)
    chunks = [chunk_of(course, config, stage, feature == "cp-ring") for stage in stages]
    wrapped = parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1
    replica, replicas = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    if wrapped:
        options = DistributedDataParallelConfig(use_distributed_optimizer=feature.startswith("distributed"))
        chunks = [DistributedDataParallel(config, options, chunk) for chunk in chunks]
        config.finalize_model_grads_func = finalize_model_grads
    optimizer = optimizer_of(course, feature, chunks)
    parts = 4 if config.pipeline_model_parallel_size > 1 else 1
    for step in range(course.steps):
        optimizer.zero_grad()
        for chunk in chunks if wrapped else ():
            chunk.zero_grad_buffer()
        read = [course.read(step, replica * parts + part, replicas * parts) for part in range(parts)]
        found = get_forward_backward_func()(
            forward_step_func=lambda batches, chunk: forward(course, next(batches), chunk),
            data_iterator=[iter(read) for _ in chunks],
            model=chunks,
            num_microbatches=parts,
            seq_length=course.sequence,
            micro_batch_size=course.batch // (replicas * parts),
            forward_only=False,
        )
        if wrapped and not feature.startswith("distributed"):
            for parameter in (parameter for chunk in chunks for parameter in chunk.parameters()):
                parameter.grad = parameter.main_grad
        optimizer.step()
        yield sum(found) / parts if found else None


def forward(course: Course, batch: tuple[Tensor, Tensor], chunk: nn.Module) -> tuple[Tensor, Any]:
    """What a chunk of layers makes, and what makes a loss of it where they are the last ones."""
    cut = get_batch_on_this_cp_rank(dict(zip(("tokens", "targets"), batch, strict=True)))
    later = torch.ones(1, 1, course.sequence, course.sequence, dtype=torch.bool).triu(1)
    made = chunk(cut["tokens"], None, later)  # rotary counts positions by itself

    def loss_of(logits: Tensor) -> tuple[Tensor, float]:
        loss = course.loss(logits, cut["targets"])
        mean = loss / parallel_state.get_context_parallel_world_size()  # which Megatron divides further, in place
        return mean, loss.item()

    return made, loss_of


def optimizer_of(course: Course, feature: str, chunks: list[nn.Module]) -> Any:
    """The course's, or Megatron's; `distributed-scheduled` has its scheduler, too, with a constant rate."""
    if not feature.startswith("distributed"):
        return course.optimizer(parameter for chunk in chunks for parameter in chunk.parameters())
    adam = {"weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "clip_grad": 0.0}
    options = OptimizerConfig(lr=course.rate, use_distributed_optimizer=True, params_dtype=course.dtype, **adam)
    optimizer = get_megatron_optimizer(options, chunks)
    if feature == "distributed-scheduled":
        OptimizerParamScheduler(optimizer, *[course.rate] * 3, 0, course.steps, "constant", 0.1, 0.1, 0, "constant")
    return optimizer

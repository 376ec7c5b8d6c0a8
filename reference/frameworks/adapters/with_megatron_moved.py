"""Megatron Core from a checkpoint of ours, and ours from one of its: `dist_checkpointing` in its format `torch_dist`.

Two ranks have a half of each matrix, and its optimizer of float32 is not shared out. What its distributed optimizer
saves by names is read as well (`fully_reshardable`), but 0.16.1 cannot load that again without Apex or Transformer
Engine: it ends with KeyError 'step', since torch's AdamW counts steps for each parameter.
"""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from reference.frameworks.adapters import as_gpu, moved
from reference.frameworks.adapters.megatron_model import TENSOR, chunk_of, config_of
from reference.frameworks.adapters.with_megatron_gpt import forward
from reference.frameworks.moving import Contents
from reference.frameworks.moving_megatron import from_megatron, to_megatron
from reference.frameworks.plain import Course


def losses(course: Course, feature: str) -> Iterator[float]:
    """`gpt-moved`."""
    yield from moved.losses(course, MegatronModel(course, feature))
    for writer in multiprocessing.active_children():  # of `save`; they would outlive this rank
        writer.terminate()


class MegatronModel:
    """Its own model, cut in two."""

    def __init__(self, course: Course, feature: str) -> None:
        as_gpu.pretend()
        parallel_state.initialize_model_parallel(**{TENSOR: dist.get_world_size()})
        self.course, self.saves = course, 0
        config = config_of(course, feature)
        self.model = chunk_of(course, config, 0)
        self.wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), self.model)
        adam = {"weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "clip_grad": 0.0}
        options = OptimizerConfig(lr=course.rate, params_dtype=course.dtype, **adam)
        self.optimizer = get_megatron_optimizer(options, [self.wrapped])

    def parts(self, is_loading: bool) -> dict[str, Any]:
        """What a rank saves or loads: names, and where its parts lie in whole tensors."""
        model = self.model.sharded_state_dict()
        known = {
            name: part for name, part in model.items() if not name.endswith("_extra_state")
        }  # of Transformer Engine
        return {"model": known, "optimizer": self.optimizer.sharded_state_dict(known, is_loading=is_loading)}

    def load(self, contents: Contents) -> None:
        """From a folder that rank 0 writes."""
        folder = Path(self.course.folder, "theirs")
        if dist.get_rank() == 0:
            to_megatron(*contents, self.course.config, self.optimizer.state_dict()["param_groups"], folder)
        dist.barrier()
        found = dist_checkpointing.load(self.parts(is_loading=True), str(folder))
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])

    def step(self, number: int) -> float:
        """Forward, backward, update: both ranks read the whole batch."""
        self.optimizer.zero_grad()
        self.wrapped.zero_grad_buffer()
        made, loss_of = forward(self.course, self.course.read(number), self.wrapped)
        loss, value = loss_of(made)
        loss.backward()
        finalize_model_grads([self.wrapped])
        self.optimizer.step()
        return value

    def saved(self) -> Contents | None:
        """Each rank its parts; torch's DCP puts them together for rank 0."""
        self.saves += 1
        folder = Path(self.course.folder, f"saved {self.saves}")
        folder.mkdir(exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(self.parts(is_loading=False), str(folder))
        dist.barrier()
        return None if dist.get_rank() else from_megatron(folder, self.course.config)

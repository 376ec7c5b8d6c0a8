"""Megatron Core: tensor parallelism by its own layers, put in the place of the model's linear ones.

Shoeybi et al. 2019, arXiv:1909.08053: `ColumnParallelLinear` begins a region and `RowParallelLinear` ends it. With
`sequence_parallel` (Korthikanti et al. 2022, arXiv:2205.05198) tokens are shared out between regions. Embedding and
head stay whole on each rank here; the gradients of norms, of which each rank has a part then, are summed by hand, as
Megatron's `finalize_model_grads` does.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, nn

from reference.frameworks.plain import Course

COLUMNS = (("attention", ("query", "key", "value")), ("feed_forward", ("gate", "up")))
ROWS = (("attention", "output"), ("feed_forward", "down"))


def losses(course: Course, feature: str) -> Iterator[float]:
    """`tp` or `sp`."""
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    slices = feature == "sp"
    options = {"use_cpu_initialization": True, "params_dtype": course.dtype, "sequence_parallel": slices}
    config = ModelParallelConfig(tensor_model_parallel_size=ranks, **options)
    model = course.model()
    for block in model.blocks:
        for part, names in COLUMNS:
            for name in names:
                replace(getattr(block, part), name, config, dim=0)
        for part, name in ROWS:
            replace(getattr(block, part), name, config, dim=1)
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Parallel(nn.Module):
    """A layer of Megatron's, called as a linear layer of ours: it gives a bias back, too, which is None."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, F]."""
        return self.layer(x)[0]


def replace(module: nn.Module, name: str, config: ModelParallelConfig, dim: int) -> None:
    """Put a layer of Megatron's in the place of a linear one, with this rank's part of its weight."""
    weight = getattr(module, name).weight.detach()
    features, inputs = weight.shape
    options = {"config": config, "init_method": nn.init.zeros_, "bias": False}
    if dim == 0:
        layer = tensor_parallel.ColumnParallelLinear(inputs, features, gather_output=False, **options)
    else:
        options |= {"input_is_parallel": True, "skip_bias_add": False}
        layer = tensor_parallel.RowParallelLinear(inputs, features, **options)
    with torch.no_grad():
        layer.weight.copy_(weight.chunk(dist.get_world_size(), dim)[dist.get_rank()])
    setattr(module, name, Parallel(layer))

"""Megatron Core: tensor and sequence parallelism by its own layers, put in the place of the model's linear ones.

Shoeybi et al. 2019, arXiv:1909.08053: `ColumnParallelLinear` begins a region and `RowParallelLinear` ends it. With
`sequence_parallel` (Korthikanti et al. 2022, arXiv:2205.05198) ranks share out tokens between regions, along the first
dim, which is that of tokens in Megatron. Embedding and head stay whole here; each rank then has a part of the gradients
of norms, which are summed as Megatron's `finalize_model_grads` does.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core import tensor_parallel as tp
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, nn

from reference.frameworks.plain import Course

COLUMNS = {"attention": ("query", "key", "value"), "feed_forward": ("gate", "up")}
ROWS = {"attention": ("output",), "feed_forward": ("down",)}


def losses(course: Course, feature: str) -> Iterator[float]:
    """`tp` or `sp`; `sp-patched`, where Megatron's buffers are told to be on the CPU."""
    if feature == "sp-patched":
        torch.cuda.current_device = lambda: "cpu"
    ranks, slices = dist.get_world_size(), feature != "tp"
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    options = {"use_cpu_initialization": True, "params_dtype": course.dtype, "sequence_parallel": slices}
    model = split(course.model(), ModelParallelConfig(tensor_model_parallel_size=ranks, **options))
    norms = [parameter for name, parameter in model.named_parameters() if "norm" in name]
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        for parameter in norms if slices else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        yield loss.item()


class Called(nn.Module):
    """A layer of Megatron's, with tokens first, called as ours are, with windows first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, F]; what it gives beside that is a bias, which is None."""
        return self.layer(x.transpose(0, 1))[0].transpose(0, 1)


def split(model: nn.Module, config: ModelParallelConfig) -> nn.Module:
    """Put Megatron's layers in the place of linear ones, and slice tokens after the embedding and before the head."""
    for block in model.blocks:
        for kind, dim, places in ((tp.ColumnParallelLinear, 0, COLUMNS), (tp.RowParallelLinear, 1, ROWS)):
            for part, names in places.items():
                for name in names:
                    module = getattr(block, part)
                    setattr(module, name, Called(layer_of(kind, dim, getattr(module, name).weight.detach(), config)))
    if config.sequence_parallel:
        model.embedding.register_forward_hook(lambda _, __, x: between(tp.scatter_to_sequence_parallel_region, x))
        model.head.register_forward_pre_hook(lambda _, given: between(gathered, given[0]))
    return model


def gathered(x: Tensor) -> Tensor:
    """All tokens, on ranks that then all do the same with them."""
    return tp.gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=False)


def between(function: object, x: Tensor) -> Tensor:
    """A function of tokens first, called with windows first."""
    return function(x.transpose(0, 1).contiguous()).transpose(0, 1)


def layer_of(kind: type, dim: int, weight: Tensor, config: ModelParallelConfig) -> nn.Module:
    """One of Megatron's layers, with this rank's part of a weight."""
    features, inputs = weight.shape
    more = {"gather_output": False} if dim == 0 else {"input_is_parallel": True, "skip_bias_add": False}
    layer = kind(inputs, features, config=config, init_method=nn.init.zeros_, bias=False, **more)
    with torch.no_grad():
        layer.weight.copy_(weight.chunk(dist.get_world_size(), dim)[dist.get_rank()])
    return layer

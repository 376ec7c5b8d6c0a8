"""Synchronised batch norm: the mean and variance of the whole batch, not of what this rank has seen of it.

Batch norm (Ioffe & Szegedy 2015) is the one common layer that looks at other samples. On n ranks, each would normalise
by its own n-th of the batch: another function than one process computes, and a poor one where that part is small.

Per channel, over all N positions of the batch:

    y = w x' + b     x' = (x - mean) / deviation     deviation = sqrt(variance + epsilon)

The mean is a function of every x, on every rank; its derivative takes the gradient's sums back to all of them:

    dL/dx = w / deviation · (g - mean(g) - x' mean(g x'))         g = dL/dy

| pass     | what is summed over ranks            | messages     | bytes, C channels |
|----------|--------------------------------------|--------------|-------------------|
| forward  | sum of x, of its squares, and count  | 1 all-reduce | 8 (2C + 1)        |
| backward | sum of g, and of g x'                | 1 all-reduce | 8 · 2C            |

Sums travel and are combined in float64: the variance is a small difference of large numbers, and known to 1e-16 of
mean² + variance. That is plenty for inputs in float32; of one in float64, those digits are lost. Weight and bias get
this rank's part of their gradients, which are summed over ranks as all gradients are.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from reference.dtypes import accumulator
from reference.errors import BadInput

DIMS = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}  # of inputs


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, group: ProcessGroup, epsilon: float = 1e-5) -> Tensor:
    """Normalise `x` by mean and variance of what all ranks have, scale, and shift. Gradients go to all ranks.

    Args:
        x: [B, C, ...], floating point. B may differ from rank to rank, and be 0.
        weight: [C], the same on every rank.
        bias: [C], the same on every rank.
        group: n ranks, which all call this, and all go backward through it.
        epsilon: added to the variance.

    Returns: like `x`.
    """
    mean, variance, count = moments(x, group)
    return Normalise.apply(x, weight, bias, mean, (variance + epsilon).rsqrt(), count, group)


@torch.no_grad()
def moments(x: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C] and variance [C] (over N, not N - 1) of each channel of every rank's `x`, and N, all in float64."""
    channels = x.shape[1]
    over = _all_but_channels(x)
    count = x.new_full((1,), x.numel() // channels, dtype=torch.float64)
    squares = torch.linalg.vector_norm(x, dim=over, dtype=torch.float64).square()
    sums = torch.cat([x.sum(over, dtype=torch.float64), squares, count])
    dist.all_reduce(sums, group=group)
    mean, mean_square = (sums[:-1] / sums[-1]).split(channels)
    return mean, (mean_square - mean.square()).clamp(min=0), sums[-1]


class Normalise(Function):
    """`apply(x, weight, bias, mean, 1 / deviation, N, group)`: normalise by moments that depend on every rank's `x`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, count: Tensor, group: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.group = group
        return (_normalised(x, mean, scale) * _along(weight, x) + _along(bias, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        over, normalised = _all_but_channels(x), _normalised(x, mean, scale)
        bias_part = gradient.sum(over, dtype=torch.float64)
        weight_part = (gradient * normalised).sum(over, dtype=torch.float64)
        sums = torch.cat([bias_part, weight_part])
        dist.all_reduce(sums, group=ctx.group)
        mean_g, mean_gx = (_along(each, x) for each in (sums / count).split(x.shape[1]))
        back = (gradient - mean_g - normalised * mean_gx) * _along(scale * weight, x)
        return back.to(x.dtype), weight_part.to(weight.dtype), bias_part.to(weight.dtype), None, None, None, None


class SynchronisedBatchNorm(nn.Module):
    """Batch norm over all ranks of a group. Parameters, buffers and their names are those of torch's batch norm.

    In training it normalises by the whole batch, and every rank must run it equally often; a rank without samples
    runs it on an empty batch. Otherwise it is torch's own, without a message: by running statistics or, if it keeps
    none, by this rank's batch alone.
    """

    def __init__(self, original: nn.Module, group: ProcessGroup) -> None:
        """Args:
        original: one of torch's, whose parameters and buffers this takes over: the same objects.
        group: n ranks.
        """
        super().__init__()
        self.group = group
        self.channels = original.num_features
        self.dims = next(dims for kind, dims in DIMS.items() if isinstance(original, kind))
        self.epsilon, self.momentum = original.eps, original.momentum
        self.weight, self.bias = original.weight, original.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(original, name))
        self.train(original.training)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, ...] -> the same shape.

        Raises:
            BadInput: for another shape, and in training, on every rank, where all of them together have less than two
                values in a channel, which have no variance.
        """
        if x.dim() not in self.dims or x.shape[1] != self.channels:
            dims = " or ".join(map(str, self.dims))
            raise BadInput(f"this takes [B, {self.channels}, ...] of {dims} dims, not {list(x.shape)}")
        if not self.training:
            by_batch = self.running_mean is None
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, by_batch, 0.0, self.epsilon
            )
        mean, variance, count = moments(x, self.group)
        if count < 2:
            raise BadInput(f"all ranks have {count.item():.0f} values of a channel together: training takes 2 or more")
        if self.running_mean is not None:
            self._keep(mean, variance * count / (count - 1))
        weight = mean.new_ones(len(mean)) if self.weight is None else self.weight
        bias = mean.new_zeros(len(mean)) if self.bias is None else self.bias
        return Normalise.apply(x, weight, bias, mean, (variance + self.epsilon).rsqrt(), count, self.group)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics: exponentially, or as the average of all steps where there is no momentum."""
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.double() if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_(running + share * (new - running))


def convert(module: nn.Module, group: ProcessGroup) -> nn.Module:
    """Put a synchronised batch norm in the place of every batch norm in `module`, with the same parameters.

    One that is used in several places stays one.

    Returns: `module`, changed; another module if it is a batch norm itself.
    """
    put = {each: SynchronisedBatchNorm(each, group) for each in module.modules() if isinstance(each, tuple(DIMS))}
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if name and child in put:
            module.set_submodule(name, put[child])
    return put.get(module, module)


def _normalised(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """x', in float32 at least."""
    return (x - _along(mean, x)) * _along(scale, x)


def _along(channels: Tensor, x: Tensor) -> Tensor:
    """[C] as [1, C, 1, ...], in the dtype in which `x` is computed with."""
    return channels.to(accumulator(x.dtype)).view(1, -1, *[1] * (x.dim() - 2))


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]

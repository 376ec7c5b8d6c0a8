"""Layers that sleep: they take time as on a GPU, and leave the processor to those who communicate.

Where ranks share few cores, whoever adds up gradients takes the time away from whoever computes them, and nothing can
hide behind anything. A GPU computes without the processor. So do these layers: they only wait, forward and, for twice
as long, backward. What they say to each other is real, and so are hooks, buckets and requests.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.trace.activity import Activity, Watch


class SleepingLayer(nn.Module):
    """Adds the mean of its weights to what comes, and takes its time.

    Args:
        weights: how many, in float32.
        seconds: that forward takes. Backward takes twice as long.
    """

    def __init__(self, weights: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weights))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """A scalar -> a scalar."""
        return _Sleep.apply(x, self.weight, self.seconds)


class _Sleep(torch.autograd.Function):
    """`apply(x, weight, seconds)`: x + the mean of weight, `seconds` later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.shape, ctx.seconds = weight.shape, seconds
        time.sleep(seconds)
        return x + weight.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient, gradient.new_ones(ctx.shape) * (gradient / ctx.shape.numel()), None


def sleeping_model(layers: int, weights: int, seconds: float) -> nn.Sequential:
    """So many layers, each with so many weights; forward of each takes `seconds`, backward 2 `seconds`."""
    return nn.Sequential(*(SleepingLayer(weights, seconds) for _ in range(layers)))


def watch_step(
    model: nn.Sequential,
    finish: Callable[[], None] = lambda: None,
    micro_batches: int = 1,
    around: Callable[[bool], AbstractContextManager[None]] = lambda last: nullcontext(),
    steps: int = 5,
) -> list[Activity]:
    """What this rank does in a step that all ranks begin together. To be run on every rank by `cluster.trace`.

    Of several steps, the one that was over first on all ranks: the others say more about the rest of the machine.

    Args:
        model: of `sleeping_model`, with hooks on its parameters if that is how it communicates.
        finish: called after backward: whatever is then left to say or to wait for.
        micro_batches: how often to go forward and backward.
        around: put around each of them; told whether it is the last.
        steps: how many to take.
    """
    noted = []
    for _ in range(steps):
        watch = Watch({f"layer {number}": layer for number, layer in enumerate(model)})
        model.zero_grad()
        dist.barrier()
        with watch.recording():
            for k in range(micro_batches):
                with around(k == micro_batches - 1):
                    watch.backward(model(torch.zeros(())))
            finish()
        noted.append(watch.activities)
    longest = torch.tensor([max(a.end for a in own) - min(a.begin for a in own) for own in noted])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return noted[int(longest.argmin())]

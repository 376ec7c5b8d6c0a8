"""Layers that sleep: they take time as on a GPU, and leave the processor to ranks that communicate.

Where ranks share few cores, a rank that adds up gradients takes the time from one that computes them, and nothing can
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

STEPS = 5  # of which `watch_step` keeps one


class SleepingLayer(nn.Module):
    """Adds the mean of its weights to what comes, and takes its time.

    Args:
        weights: how many, in float32.
        seconds: that forward takes. Backward takes twice as long.
        sleep: for so many seconds.
    """

    def __init__(self, weights: int, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weights))
        self.seconds, self.sleep = seconds, sleep

    def forward(self, x: Tensor) -> Tensor:
        """A scalar -> a scalar."""
        return _Sleep.apply(x, self.weight, self)


class _Sleep(torch.autograd.Function):
    """`apply(x, weight, layer)`: x + the mean of weight, some time later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: SleepingLayer) -> Tensor:
        ctx.shape, ctx.layer = weight.shape, layer
        layer.sleep(layer.seconds)
        return x + weight.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.layer.sleep(2 * ctx.layer.seconds)
        return gradient, gradient.new_ones(ctx.shape) * (gradient / ctx.shape.numel()), None


def sleeping_model(
    layers: int, weights: int, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> nn.Sequential:
    """So many layers, each with so many weights; forward of each sleeps for `seconds`, backward for 2 `seconds`."""
    return nn.Sequential(*(SleepingLayer(weights, seconds, sleep) for _ in range(layers)))


def watch_step(
    model: nn.Sequential,
    finish: Callable[[], None] = lambda: None,
    micro_batches: int = 1,
    context: Callable[[bool], AbstractContextManager[None]] = lambda last: nullcontext(),
) -> list[Activity]:
    """What this rank does in a step that all ranks begin together. To be run on every rank by `cluster.trace`.

    Of `STEPS` steps, the one that was over first on all ranks: the others say more about the rest of the machine.

    Args:
        model: of `sleeping_model`, with hooks on its parameters if that is how it communicates.
        finish: called after backward: whatever is then left to say or to wait for.
        micro_batches: how often to go forward and backward.
        context: put around each of them; told whether it is the last.
    """
    noted = []
    for _ in range(STEPS):
        watch = Watch({f"layer {number}": layer for number, layer in enumerate(model)})
        model.zero_grad()
        dist.barrier()
        with watch.recording():
            for k in range(micro_batches):
                with context(k == micro_batches - 1):
                    watch.backward(model(torch.zeros(())))
            finish()
        noted.append(watch.activities)
    longest = torch.tensor([max(a.end for a in own) - min(a.begin for a in own) for own in noted])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return noted[int(longest.argmin())]

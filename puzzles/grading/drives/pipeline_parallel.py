"""Drives of the chapters of pipelines: they ask for orders, and run the step that these make, with tiny layers."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.errors import BadInput
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward

if TYPE_CHECKING:
    from ..schedules import Pipe

ORDERS, LOSS = "returns", "the loss"  # under which a drive reports them
SAMPLES, WIDTH = 2, 3  # of a micro-batch, of a layer


def in_order(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Ask for the order of every rank; where these make a step that ends, run it on ranks, if there are as many.

    Every rank works out all orders: a sender must know what the others wait for. The argument `pipe` is the pipeline,
    `every` has the function's own arguments for each rank. Compare the orders, the loss, and the gradients of stages.
    """
    pipe: Pipe = arguments["pipe"]
    orders = [written(function(**each)) for each in arguments["every"]]
    found: dict[str, Any] = {ORDERS: orders}
    if pipe.ranks == dist.get_world_size():
        with suppress(BadInput):  # the owner of the ranks says why
            found |= ran(pipe.schedule(orders))
    return found


def written(order: Any) -> Any:
    """Actions as text; what is something else, as it is."""
    if not isinstance(order, list | tuple):
        return order
    return [str(each) if isinstance(each, Action) else each for each in order]


def ran(schedule: Schedule) -> dict[str, Any]:
    """Run a step. This rank's part of the loss, if it has one, and the gradients of its stages."""
    rank, m = dist.get_rank(), schedule.micro_batches
    stages = {stage: layer(stage) for stage, where in enumerate(schedule.placement) if where == rank}
    splits = any(action.kind is Kind.INPUT for action in schedule.lines[rank])
    deferred = DeferredWeightGradients() if splits else None
    if splits:
        split_backward(nn.ModuleList(stages.values()), deferred)
    pipeline = Pipeline(schedule, stages, dist.group.WORLD, torch.device("cpu"), deferred=deferred)
    inputs = batch(m)
    loss = pipeline.step(lambda k: (inputs[k],), lambda y, k: y.square().sum() / inputs.numel())
    found: dict[str, Any] = {gradient_of(stage): module[0].weight.grad for stage, module in stages.items()}
    return found if loss is None else {**found, LOSS: loss.item()}


def layer(stage: int) -> nn.Module:
    """What a stage computes: tanh(x weightᵀ)."""
    linear = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
    linear.weight.data.copy_(weight(stage))
    return nn.Sequential(linear, nn.Tanh())


def weight(stage: int) -> Tensor:
    """[D, D], of the layer of a stage."""
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(stage), dtype=torch.float64)


def batch(m: int) -> Tensor:
    """[m, B, D], samples of each micro-batch."""
    return torch.randn(m, SAMPLES, WIDTH, generator=torch.Generator().manual_seed(m), dtype=torch.float64)


def gradient_of(stage: int) -> str:
    """Under which name the gradient of a stage's weight is reported."""
    return f"the gradient of stage {stage}"


def with_a_weight(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with a `weight` that requires a gradient. Compare what it returns, "weight.grad", and arguments."""
    weight = arguments["weight"].requires_grad_()
    return {"returns": function(**arguments), "weight.grad": weight.grad, **arguments}

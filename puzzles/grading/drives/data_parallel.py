"""Drives of the chapter `data_parallel`: they stand for the training loop around a learner's function."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..overlap import Work
from . import gone_back

FUNCTION = "a function"  # what stands for one in a report
ONE_STEP = "of one step at most"  # what stands for gradients that are not held forever
SAME_MEMORY = "the same memory as before"  # what stands for tensors that were changed in place


class Layered(nn.Module):
    """Linear layers with tanh between them; going backward through one of them takes `seconds` on the model's clock.

    Backward finds the bias of the first layer before its weight, the weight of the second before its bias, and so on.

    Args:
        weights: weight (out, in) and bias (out) of each layer, one after the other; copied.
        seconds: of the backward of a layer.
        work: where that is noted.
    """

    def __init__(self, weights: Sequence[Tensor], seconds: float = 0.0, work: Work | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_linear(*pair) for pair in zip(weights[::2], weights[1::2], strict=True))
        self.seconds, self.work = seconds, work

    def forward(self, x: Tensor) -> Tensor:
        """[B, in of the first layer] -> [B, out of the last]."""
        for number, layer in enumerate(self.layers):
            x = x.tanh() if number else x
            y = F.linear(x, layer.weight, layer.bias * 1) if number % 2 else layer(x)
            x = _Takes.apply(y, self.seconds, self.work)
        return x


class _Takes(torch.autograd.Function):
    """Nothing, and on the way back a note of the work that the layer before it is about to do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float, work: Work | None) -> Tensor:
        ctx.seconds, ctx.work = seconds, work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.work is not None:
            ctx.work(ctx.seconds)
        return gradient, None, None


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    layer.bias.data.copy_(bias)
    return layer


def part_of_loss(model: nn.Module, x: Tensor, samples: int) -> Tensor:
    """What the samples `x` add to the mean over `samples` of the squared output."""
    return model(x).square().sum() / samples


def taken(model: nn.Module, step: int) -> dict[str, Tensor | None]:
    """Every parameter, and its gradient, by the step and its name. The model has no gradients afterwards."""
    found: dict[str, Tensor | None] = {
        f"step {step}, {name}": p.detach().clone() for name, p in model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        found[f"step {step}, {name}.grad"] = None if parameter.grad is None else parameter.grad.clone()
        parameter.grad = None
    return found


def _gradients_of(model: nn.Module) -> list[weakref.ref[Tensor]]:
    """The gradients that are there, with no reference held here."""
    return [weakref.ref(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def _held(gradients: Sequence[weakref.ref[Tensor]], steps: int) -> str:
    """Of how many steps the gradients of all `steps` are still there."""
    alive = {id(gradient) for each in gradients if (gradient := each()) is not None}
    return ONE_STEP if len(alive) * steps <= len(gradients) else f"{len(alive)} of {len(gradients)} in {steps} steps"


def with_hooks(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it a `model` of the argument `weights`; it returns what to call after each backward.

    The argument `batches` has this rank's samples of each step, `samples` how many all ranks have together. Compare
    parameters and gradients of every step, and whether gradients are held when their step is over.
    """
    weights, seconds, batches, samples = (arguments.pop(name) for name in ("weights", "seconds", "batches", "samples"))
    work = Work()
    model = Layered(weights, seconds, work)
    finish = function(model=model, **arguments)
    found, gradients = {"returns": _kind(finish)}, []
    if callable(finish):
        for step, (x, of_all) in enumerate(zip(batches, samples, strict=True)):
            part_of_loss(model, x, of_all).backward()
            finish()
            gradients += _gradients_of(model)
            found |= taken(model, step)
    return {**found, "gradients held": _held(gradients, len(batches)), **work.notes}


def in_micro_batches(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `with_hooks`, in several micro-batches a step; it returns what to put around each of them.

    Every element of the argument `batches` is a list of micro-batches.
    """
    weights, batches, samples = (arguments.pop(name) for name in ("weights", "batches", "samples"))
    model = Layered(weights)
    micro_batch = function(model=model, **arguments)
    found, gradients = {"returns": _kind(micro_batch)}, []
    if callable(micro_batch):
        for step, (parts, of_all) in enumerate(zip(batches, samples, strict=True)):
            for number, x in enumerate(parts):
                with micro_batch(number == len(parts) - 1):
                    part_of_loss(model, x, of_all).backward()
            gradients += _gradients_of(model)
            found |= taken(model, step)
    return {**found, "gradients held": _held(gradients, len(batches))}


def _kind(returned: Any) -> Any:
    """What is to be called, as a value that can be compared."""
    return FUNCTION if callable(returned) else returned


def in_place(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. Compare what it returns, the argument `gradients` afterwards, and whether they are where they were."""
    gradients = {f"gradients[{number}]": gradient for number, gradient in enumerate(arguments["gradients"])}
    before = _addresses(gradients)
    returned = function(**arguments)
    return {**arguments, "returns": returned, "in place": _whether_the_same(before, gradients)}


def _addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def _whether_the_same(before: Mapping[str, int], tensors: Mapping[str, Tensor]) -> str:
    """Memory as before, or which tensors have other memory."""
    moved = [name for name, address in _addresses(tensors).items() if address != before.get(name)]
    return f"other memory for {', '.join(moved)}" if moved else SAME_MEMORY


def on_a_module(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it a `module` of the arguments `parameters` and `buffers`. Compare them afterwards, and where they are.

    The first parameter is tied: it has a second name. The last buffer is one that no checkpoint keeps.
    """
    parameters, buffers = arguments.pop("parameters"), arguments.pop("buffers")
    module = nn.Module()
    for name, value in parameters.items():
        module.register_parameter(name, nn.Parameter(value))
    module.register_parameter("tied", next(module.parameters()))
    for number, (name, value) in enumerate(buffers.items(), 1):
        module.register_buffer(name, value, persistent=number < len(buffers))
    before = _addresses(_state(module))
    returned = function(module=module, **arguments)
    state = _state(module)
    return {**state, "returns": returned, "in place": _whether_the_same(before, state)}


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach() for name, x in [*module.named_parameters(), *module.named_buffers()]}


def backward_of_the_loss(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Go backward from what it returns to the argument `losses`. Compare both."""
    losses = arguments["losses"].requires_grad_()
    loss = gone_back(function(**arguments), torch.ones((), dtype=losses.dtype))
    return {"returns": loss, "losses.grad": losses.grad}


def step_after_step(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Go through what it returns, and in each step take part in the sum of all ranks' batches.

    The argument `batches` is a list of tensors, of which the function gets an iterator; rows of zeros are padding.
    Compare the mean over all samples of each step; zeros, where there are none.
    """
    batches, width = arguments.pop("batches"), arguments.pop("width")
    means = []
    for batch, samples in function(batches=iter(batches), tokens_of=_without_padding, **arguments):
        total = torch.zeros(width, dtype=torch.float64) if batch is None else batch.sum(0)
        dist.all_reduce(total, group=arguments["group"])
        means.append(total / max(samples, 1))
    return {"the means": means}


def _without_padding(batch: Tensor) -> int:
    return int(batch.any(dim=1).sum())

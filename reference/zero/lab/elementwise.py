"""Which optimizers may be given a shard: found out by experiment.

ZeRO cuts flat tensors into equal shards, right through the middle of matrices. That changes nothing for an optimizer
that treats each element by itself, as SGD and Adam do. Others look at the tensor: Adafactor keeps means of rows and
columns, Muon makes a matrix orthogonal, LARS and LAMB compare the norms of a weight and its update. Given a piece, most
of them compute something else, and say nothing.

A list of names would go out of date, and would not know the reader's own optimizer. So take a few steps on a matrix,
the same steps on two pieces of it, flattened, each with an optimizer of its own, and compare.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.errors import BadInput

MATRIX = (6, 4)
CUT = (7, 17)  # elements of the two pieces: the cut goes through a row
SCALES = (1.0, 100.0, 0.01)  # of the gradients, step by step: clipping by a tensor's norm happens in one of them
TOLERANCE = 1e-9  # relative, in float64: rounding may differ by 1e-16 a step, another update differs by percents


def elementwise(optimizer_class: Callable[..., Optimizer], **options: Any) -> bool:
    """True where an optimizer updates a piece of a tensor as it does within the whole. Takes milliseconds.

    Args:
        optimizer_class: makes an optimizer from a list of parameters, and the options. One that draws random numbers
            does not pass.
        options: such as `lr`.

    Raises:
        ValueError, TypeError: by the optimizer, if it does not have these options, or not these values.
    """
    return _obstacle(optimizer_class, options) is None


def require_elementwise(optimizer_class: Callable[..., Optimizer], **options: Any) -> None:
    """Refuse what is not `elementwise`, and options that do not work.

    Raises:
        BadInput: with the reason, and what would work.
    """
    name = getattr(optimizer_class, "__name__", repr(optimizer_class))
    try:
        obstacle = _obstacle(optimizer_class, options)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} cannot be made with these options: {error}") from None
    if obstacle:
        raise BadInput(
            f"{name} cannot update shards: {obstacle}; "
            "take one that treats each element by itself, such as AdamW, Adam, RMSprop or SGD, "
            "or a form that keeps tensors whole: naive, flat or ddp"
        )


def _obstacle(optimizer_class: Callable[..., Optimizer], options: dict[str, Any]) -> str | None:
    """Why an optimizer cannot update shards; None if it can."""
    if "capturable" in options:
        options = options | {"capturable": False}  # by which it runs in CUDA graphs: on GPUs alone, the same arithmetic
    generator = torch.Generator().manual_seed(0)
    start, *directions = torch.randn(1 + len(SCALES), *MATRIX, generator=generator, dtype=torch.float64)
    gradients = [scale * direction for scale, direction in zip(SCALES, directions, strict=True)]
    optimizer_class([nn.Parameter(start.clone())], **options)  # what is wrong with the options shows here
    try:
        whole = _updated(optimizer_class, options, start, gradients).flatten()
    except Exception as error:
        return f"on a matrix, it stops with {str(error)!r}"
    pieces = zip(*(x.flatten().split(CUT) for x in (start, *gradients)), strict=True)
    try:
        parts = [_updated(optimizer_class, options, first, rest) for first, *rest in pieces]
    except Exception as error:
        return f"on a piece of a matrix, it stops with {str(error)!r}"
    if not torch.allclose(torch.cat(parts), whole, rtol=TOLERANCE, atol=TOLERANCE):
        return "a piece of a matrix gets another update than within the whole"
    return None


def _updated(
    optimizer_class: Callable[..., Optimizer], options: dict[str, Any], start: Tensor, gradients: Sequence[Tensor]
) -> Tensor:
    """What an optimizer makes of `start` by one step for each gradient."""
    parameter = nn.Parameter(start.clone())
    optimizer = optimizer_class([parameter], **options)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()

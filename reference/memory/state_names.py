"""What an optimizer remembers of a parameter: found out by one step on a small one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.errors import BadInput


def state_names(make: Callable[[nn.Parameter], Optimizer], options: Mapping[str, Any], dim: int) -> list[str]:
    """Which tensors of a parameter's shape an optimizer keeps for it: those it has after a step.

    Args:
        make: the optimizer of one parameter, on the CPU.
        options: of its group, such as amsgrad, where they are others than `make` gives.
        dim: how many dims the parameter has.

    Raises:
        BadInput: if the optimizer needs more than a gradient for each parameter.
    """
    parameter = nn.Parameter(torch.zeros([2] * max(dim, 1)))  # a number would look like Adam's count of steps
    optimizer = make(parameter)
    optimizer.param_groups[0].update({**options, "params": [parameter]})
    parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except Exception as error:
        name = type(optimizer).__name__
        raise BadInput(f"{name} does not step from one dense gradient at a time, as AdamW does: {error}") from None
    state = optimizer.state[parameter]
    return [name for name, x in state.items() if isinstance(x, Tensor) and x.shape == parameter.shape]

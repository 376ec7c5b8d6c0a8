"""Drives of the chapter `tensor_parallel`: they go backward through what a learner's function has made."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def there_and_back(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Go backward from what it returns, with the argument `upstream`, to every argument that is a tensor of floats.

    The function does not see `upstream`. Compare the output as "returns", and each gradient by the name of its
    argument: "weight.grad".
    """
    upstream = arguments.pop("upstream")
    leaves = {name: x.requires_grad_() for name, x in arguments.items() if _is_real(x)}
    output = function(**arguments)
    fits = isinstance(output, Tensor) and output.shape == upstream.shape
    if fits and output.requires_grad:
        (output * upstream).sum().backward()  # output.backward(upstream) makes torch import sympy, for half a second
    returned = output.detach() if isinstance(output, Tensor) else output
    return {"returns": returned, **{f"{name}.grad": leaf.grad for name, leaf in leaves.items()}}


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()

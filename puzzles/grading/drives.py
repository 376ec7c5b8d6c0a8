"""How a solution's function is called on a rank, and what of it is compared.

A drive gets the function, its arguments by name (`group` among them where the function takes one) and returns what
there is to compare, by name: "returns" for what came back, arguments by their own names. It runs next to the learner's
code, so it knows nothing that would give the answer away.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def plain(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. Compare what it returns, and every argument as it is afterwards."""
    returned = function(**arguments)
    return {**arguments, "returns": returned}


def backward(function: Callable[..., Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with `x` as a leaf, then propagate the argument `upstream` backward.

    Compare the output as "returns" and the gradient as "x.grad". The function does not see `upstream`.
    """
    upstream = arguments.pop("upstream")
    x = arguments["x"].requires_grad_()
    output = function(**arguments)
    if not isinstance(output, Tensor) or not output.requires_grad:
        return {"returns": output, "x.grad": None}
    output.backward(upstream)
    return {"returns": output.detach(), "x.grad": x.grad}

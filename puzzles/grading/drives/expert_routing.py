"""Drives of the chapter `expert_parallel`: routers, and what surrounds them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from . import gone_back


def in_micro_batches_of_scores(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It returns experts and their weights for each tensor of the argument `scores`. Go backward from the weights.

    The argument `upstream` has a gradient for the weights of each. Compare these, gradients, and `bias` afterwards.
    """
    scores, upstream = arguments["scores"], arguments.pop("upstream")
    for each in scores:
        each.requires_grad_()
    routed = function(**arguments)
    if not _are_pairs(routed, len(scores)):
        return {"returns": routed}
    found = {"bias": arguments["bias"].detach()}
    for number, ((chosen, weights), of_weights) in enumerate(zip(routed, upstream, strict=True)):
        found[f"experts of micro-batch {number}"] = chosen
        found[f"weights of micro-batch {number}"] = gone_back(weights, of_weights)
    return found | {f"gradient of scores {number}": each.grad for number, each in enumerate(scores)}


def _are_pairs(routed: Any, number: int) -> bool:
    """Whether that is a list of so many pairs of tensors."""
    some = isinstance(routed, Sequence) and len(routed) == number
    return some and all(
        isinstance(each, tuple | list) and len(each) == 2 and all(isinstance(x, Tensor) for x in each)
        for each in routed
    )

"""Drives of the chapter `sequence_parallel`: they go backward through a learner's functions, and look at gradients."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def through_a_pair(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It returns two functions. Go through each of them, there and back.

    The arguments `mine` and `whole` are what they are called with, `of_whole` and `of_mine` the gradients of what they
    return. The function sees none of these.
    """
    mine, whole, of_mine, of_whole = (arguments.pop(name) for name in ("mine", "whole", "of_mine", "of_whole"))
    pair = function(**arguments)
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
        return {"gather(x)": pair}
    found = {}
    for name, each, x, upstream in zip(("gather", "scatter"), pair, (mine, whole), (of_whole, of_mine), strict=True):
        x.requires_grad_()
        output = each(x)
        _backward(output, upstream)
        found |= {f"{name}(x)": _detached(output), f"gradient through {name}": x.grad}
    return found


def through_a_layer(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Go backward from what it returns, with the argument `upstream`, to all floating-point tensors that it was given.

    Compare the output as "returns", and the gradients by name: "x.grad". The function does not see `upstream`.
    """
    upstream = arguments.pop("upstream")
    leaves = {
        name: value.requires_grad_()
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    output = function(**arguments)
    _backward(output, upstream)
    return {"returns": _detached(output), **{f"{name}.grad": leaf.grad for name, leaf in leaves.items()}}


def in_training(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It trains, and returns a loss for each step. Compare these, and all arguments as they are afterwards."""
    losses = function(**arguments)
    return {**arguments, "losses": losses}


def _backward(output: Any, upstream: Tensor) -> None:
    """From an output of the right shape that has a history."""
    if isinstance(output, Tensor) and output.shape == upstream.shape and output.requires_grad:
        (output * upstream).sum().backward()  # output.backward(upstream) makes torch import sympy, for half a second


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output

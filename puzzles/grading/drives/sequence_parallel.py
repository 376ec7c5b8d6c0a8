"""Drives of the chapter `sequence_parallel`: they go backward through a learner's functions, and look at gradients."""

from collections.abc import Callable
from typing import Any

from . import gone_back


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
        output = gone_back(each(x.requires_grad_()), upstream)
        found |= {f"{name}(x)": output, f"gradient through {name}": x.grad}
    return found


def in_training(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """It trains, and returns a loss for each step. Compare these, and all arguments as they are afterwards."""
    losses = function(**arguments)
    return {**arguments, "losses": losses}

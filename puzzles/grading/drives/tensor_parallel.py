"""Drives of the chapter `tensor_parallel`: they go backward through what a learner's function has made."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..overlap import Work
from . import gone_back, group_of, there_and_back, two_levels

OPERATORS = "two functions"  # what stands for them in a report


def around_two_layers(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Put the two operators f and g that it returns around x Aᵀ Bᵀ, and go backward from the argument `upstream`.

    The argument `first` has this rank's rows of A, `second` its columns of B. Compare what each operator gives, on the
    way there and on the way back, and what each was given, as it is afterwards.
    """
    x, first, second, upstream = (arguments.pop(name) for name in ("x", "first", "second", "upstream"))
    found = function(**arguments)
    if not (isinstance(found, tuple | list) and len(found) == 2 and all(callable(each) for each in found)):
        return {"returns": found}
    f, g = found
    inside = f(x.requires_grad_())
    given: list[Tensor] = []
    if isinstance(inside, Tensor) and inside.requires_grad:
        inside.register_hook(given.append)  # it sees the gradient before f does
    part = (inside if isinstance(inside, Tensor) and inside.shape == x.shape else x) @ first.T @ second.T
    part.requires_grad_().retain_grad()
    y = gone_back(g(part), upstream)
    back = {"the gradient that g gives back": part.grad, "the gradient that f gives back": x.grad}
    return {
        "returns": OPERATORS,
        "what f gives": inside.detach() if isinstance(inside, Tensor) else inside,
        "what g gives": y,
        **back,
        "x, which f was given": x.detach(),
        "the part, which g was given": part.detach(),
        "the gradient, which f was given": (*given, None)[0],
    }


def among_neighbours(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `there_and_back`; give the function `neighbours(size)`, the group of so many neighbours that it is in."""
    group = arguments["group"]
    ranks, own = dist.get_process_group_ranks(group), dist.get_rank(group)

    @cache
    def neighbours(size: int) -> ProcessGroup:
        if size < 1 or len(ranks) % size:
            raise ValueError(f"{len(ranks)} ranks do not make groups of {size} neighbours")
        first = own // size * size
        return group_of(ranks[first : first + size])

    return there_and_back(lambda **given: function(**given, neighbours=neighbours), arguments)


def named(names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. Compare the tensors that it returns, each under its name, and how many there are; and all arguments."""
    return {**arguments, **by_name(names, function(**arguments))}


def by_name(names: Sequence[str], returned: Any) -> dict[str, Any]:
    """Several tensors that a function has returned, by these names; "returns" says how many there are."""
    if not isinstance(returned, tuple | list):
        return {"returns": returned}
    return {"returns": f"{len(returned)} tensors", **dict(zip(names, returned, strict=False))}


def with_layers_between(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `backward`, through layers that the argument `layers` stands for: y = rows @ layers.

    Compare what `backward` is called with, too, and how often: real layers sum up gradients of their own there.
    """
    layers, given = arguments.pop("layers"), []

    def backward(gradient: Tensor) -> Tensor:
        given.append(gradient.clone())
        return gradient @ layers.T

    returned = function(**arguments, backward=backward)
    return {"returns": returned, "calls of backward": len(given), "what backward is given": (*given, None)[0]}


def with_products_that_take_time(
    names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Give it `multiply`, of two matrices, by the argument `flops` (a second) on the model's clock; then as `named`."""
    flops, work = arguments.pop("flops"), Work()

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        work(2 * a.numel() * b.shape[1] / flops)
        return a @ b

    return {**arguments, **by_name(names, function(**arguments, multiply=multiply)), **work.notes}


def on_a_mesh(names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it the `row` and the `column` of this rank, on a mesh of as many columns as `columns` says; as `named`."""
    arguments["ranks_per_node"] = arguments.pop("columns")
    found = two_levels(lambda intra, inter, **given: function(row=intra, column=inter, **given), arguments)
    return by_name(names, found["returns"])

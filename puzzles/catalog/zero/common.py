"""Calls, inputs and sizes that several puzzles of this chapter share."""

from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from puzzles.grading.puzzle import Case, Inputs
from reference.collectives.compat import all_gather_single, reduce_scatter_single

DOUBLE = 8  # bytes of an element: everything is compared in float64

ALL_GATHER = (all_gather_single, dist.all_gather_into_tensor)  # one call: torch has renamed it
REDUCE_SCATTER = (reduce_scatter_single, dist.reduce_scatter_tensor)


def shard_of(numel: int, n: int) -> int:
    """Elements of a shard: an n-th, rounded up."""
    return -(-numel // n)


def cut(x: Tensor, n: int, padding: float = 0.0) -> list[Tensor]:
    """The n shards of a tensor, flat, in group order; the last of them end in padding."""
    shard = shard_of(x.numel(), n)
    whole = torch.full((n * shard,), padding, dtype=x.dtype)
    whole[: x.numel()] = x.flatten()
    return list(whole.split(shard)) if shard else [whole] * n


def sample(case: Case, rank: int, numel: int) -> dict[str, Tensor]:
    """`a` and `b` of this rank's loss ½ (a·w - b)², for `numel` parameters."""
    return {"a": case.normal(rank, numel, name="a"), "b": case.normal(rank, name="b")}


def gradient(inputs: Inputs, w: Tensor) -> Tensor:
    """Of the losses of all ranks together, at parameters `w`."""
    return sum((each["a"].dot(w) - each["b"]) * each["a"] for each in inputs)


# A model of linear layers, of which each rank has a shard of every weight and a batch of its own.


def shapes_of(case: Case) -> list[tuple[int, int]]:
    """(out, in) of each layer, from the parameter `widths`: in of the first, out of each."""
    return [(out, width) for width, out in zip(case.widths, case.widths[1:], strict=False)]


def weights_of(case: Case) -> list[Tensor]:
    """The whole weights, the same whichever rank asks."""
    return [case.normal(0, *shape, name=f"weight {i}") for i, shape in enumerate(shapes_of(case))]


def a_batch_and_shards(case: Case, rank: int) -> dict[str, Any]:
    """This rank's input, and its shard of each weight."""
    return {
        "x": case.normal(rank, case.batch, case.widths[0]),
        "shards": [cut(weight, case.n)[rank] for weight in weights_of(case)],
        "shapes": shapes_of(case),
    }


def a_batch_and_its_upstream(case: Case, rank: int) -> dict[str, Any]:
    """As `a_batch_and_shards`, and the gradient of this rank's loss with respect to its output."""
    upstream = case.normal(rank, case.batch, case.widths[-1], name="upstream")
    return {**a_batch_and_shards(case, rank), "upstream": upstream}


def outputs_and_gradients(case: Case, inputs: Inputs) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
    """By rank: the output, the gradient of x, and of each weight the gradient of all ranks' losses, by autograd."""
    weights = [weight.requires_grad_() for weight in weights_of(case)]
    found = []
    for each in inputs:
        x = y = each["x"].requires_grad_()
        for weight in weights:
            y = y @ weight.T
        (y * each["upstream"]).sum().backward()
        found.append((y.detach(), x.grad))
    return [(y, x_gradient, [weight.grad for weight in weights]) for y, x_gradient in found]


def layers_sent(case: Case) -> int:
    """Bytes that a rank sends when each weight is gathered once, or each gradient scattered once."""
    return DOUBLE * sum((case.n - 1) * shard_of(prod(shape), case.n) for shape in shapes_of(case))


def largest_layer(case: Case) -> int:
    """Bytes of the largest weight, padded."""
    return DOUBLE * max(case.n * shard_of(prod(shape), case.n) for shape in shapes_of(case))


def activations(case: Case) -> int:
    """Bytes of what all layers give out."""
    return DOUBLE * case.batch * sum(case.widths[1:])


def widest(case: Case) -> int:
    """Bytes of the largest input or output of a layer."""
    return DOUBLE * case.batch * max(case.widths)


def gradient_shards(case: Case) -> int:
    """Bytes of a rank's shards of all gradients."""
    return DOUBLE * sum(shard_of(prod(shape), case.n) for shape in shapes_of(case))

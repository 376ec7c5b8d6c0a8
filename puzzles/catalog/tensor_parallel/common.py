"""Calls, inputs and costs that several puzzles of this chapter share."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from puzzles.grading.overlap import notes_of
from puzzles.grading.puzzle import Case, Claim, Inputs
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.compat import all_gather_single

LAYER = ("y", "gradient of x", "gradient of weight", "gradient of bias")  # what a layer by hand returns
DOUBLE = 8  # bytes of an element: everything is compared in float64

ALL_GATHER = (all_gather_single, dist.all_gather_into_tensor, dist.all_gather)  # the first two are one call: renamed


def whole(case: Case, name: str, *shape: int) -> Tensor:
    """Normally distributed numbers, the same whichever rank asks."""
    return case.normal(0, *shape, name=name)


def numbers(case: Case, name: str, *shape: int) -> Tensor:
    """Numbers of which products are exact in float64, the same whichever rank asks: see `Case.factors`."""
    return case.factors(0, *shape, name=name)


def part(x: Tensor, case: Case, rank: int, dim: int) -> Tensor:
    """This rank's n-th of a whole tensor along `dim`, as a tensor of its own."""
    return x.tensor_split(case.n, dim)[rank].clone()


def all_reduces(case: Case, *shapes: Sequence[int]) -> int:
    """Bytes that the busiest rank sends in all-reduces of tensors of these shapes, around a ring."""
    return max(sum(cost.of(ring).bytes(rank, case.n, prod(each), DOUBLE) for each in shapes) for rank in range(case.n))


def gradients(y: Tensor, upstream: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Any]:
    """`y` as "returns", and the gradient of every leaf it was made of as "<name>.grad", by autograd in one process."""
    found = torch.autograd.grad((y * upstream).sum(), list(leaves.values()))
    return {"returns": y.detach(), **{f"{name}.grad": each for name, each in zip(leaves, found, strict=True)}}


def by_multiply(products: Callable[[Case], int]) -> Callable[..., list[Claim]]:
    """A judge for products of `case.microseconds` each: all of a rank's went through `multiply`, where time passes.

    Args:
        products: how many a rank has to do, in a case; one that is done in pieces counts once.
    """

    def judge(case: Case, inputs: Inputs, outputs: list[dict[str, Any]], trace: Any) -> list[Claim]:
        seconds = min(sum(taken for _, taken in notes_of(each)) for each in outputs)
        done, asked = round(1e6 * seconds / case.microseconds, 3), products(case)
        return [Claim(done >= asked, f"`multiply` did {done:g} of {asked} products: use it for all of them")]

    return judge


def by_definition(
    x: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, heads: int, kv_heads: int
) -> Tensor:
    """Causal attention with all its heads, one after the other: [B, S, D] -> [B, S, D]."""
    place = torch.arange(x.shape[1])
    sees = (place.unsqueeze(1) >= place).double()
    found = []
    for head in range(heads):
        q = x @ query.chunk(heads)[head].T
        k, v = (x @ weight.chunk(kv_heads)[head * kv_heads // heads].T for weight in (key, value))
        weight = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp() * sees
        found.append(weight / weight.sum(-1, keepdim=True) @ v)
    return torch.cat(found, -1) @ output.T

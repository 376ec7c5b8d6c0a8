"""Calls, inputs and costs that several puzzles of this chapter share."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from puzzles.grading.puzzle import Case
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.native import all_gather_single

DOUBLE = 8  # bytes of an element: everything is compared in float64

ALL_GATHER = (all_gather_single, dist.all_gather_into_tensor, dist.all_gather)  # the first two are one call: renamed


def whole(case: Case, name: str, *shape: int) -> Tensor:
    """A tensor that is the same whichever rank asks; weights are scaled so that what they make is about 1."""
    return case.normal(0, *shape, name=name) / shape[-1] ** (0.5 if name != "x" else 0.0)


def part(x: Tensor, case: Case, rank: int, dim: int) -> Tensor:
    """This rank's n-th of a whole tensor along `dim`, as a tensor of its own."""
    return x.tensor_split(case.n, dim)[rank].clone()


def all_reduces(case: Case, *shapes: Sequence[int]) -> int:
    """Bytes that the busiest rank sends in all-reduces of tensors of these shapes, around a ring."""
    return max(sum(cost.of(ring).bytes(rank, case.n, prod(each), DOUBLE) for each in shapes) for rank in range(case.n))


def gradients(output: Tensor, upstream: Tensor, **leaves: Tensor) -> dict[str, Any]:
    """The output as "returns", and the gradient of every leaf under its name, by autograd in one process."""
    found = torch.autograd.grad((output * upstream).sum(), list(leaves.values()), allow_unused=True)
    return {"returns": output.detach(), **{f"{name}.grad": each for name, each in zip(leaves, found, strict=True)}}

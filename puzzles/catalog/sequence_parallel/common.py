"""Calls, shapes and costs that several puzzles of this chapter share.

Letters of shapes: B batch, S sequence, D width, F hidden width, t ranks. Cases say `slice`, which is S / t.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from puzzles.grading.puzzle import Case, Inputs
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.compat import all_gather_single, reduce_scatter_single

DOUBLE = 8  # bytes of an element: everything is compared in float64

ALL_GATHER = (all_gather_single, dist.all_gather_into_tensor, dist.all_gather)  # the first two are one call: renamed
REDUCE_SCATTER = (reduce_scatter_single, dist.reduce_scatter_tensor)


def mine(case: Case, width: int | None = None) -> tuple[int, int, int]:
    """The shape of a rank's slice, [B, S / t, D]."""
    return case.batch, case.slice, case.width if width is None else width


def whole(case: Case, width: int | None = None) -> tuple[int, int, int]:
    """The shape of all tokens, [B, S, D]."""
    return case.batch, case.n * case.slice, case.width if width is None else width


def tokens_of(inputs: Inputs, name: str) -> Tensor:
    """All ranks' slices of an argument, one after another: [B, S, D]."""
    return torch.cat([each[name] for each in inputs], dim=1)


def slices_of(x: Tensor, n: int) -> list[Tensor]:
    """[B, S, D] as n slices."""
    return list(x.chunk(n, dim=1))


def one_pass(case: Case) -> int:
    """Bytes that a rank sends to gather all slices of the residual stream, or to sum them up: the slice, t-1 times."""
    batch, tokens, width = mine(case)
    return DOUBLE * (case.n - 1) * batch * tokens * width


def all_reduce_of(case: Case, numel: int) -> int:
    """Bytes that a rank sends at most where so many numbers are summed around a ring."""
    return cost.of(ring).most(case.n, numel, DOUBLE)


def part_of(case: Case, rank: int, rows: int, columns: int, name: str) -> Tensor:
    """A rank's part [rows, columns] of a matrix, scaled so that what goes through it stays around one."""
    return case.normal(rank, rows, columns, name=name) / columns**0.5


def called(case: Case) -> dict[str, int]:
    """For the drive: how often the function is called, where the case says so."""
    return {"times": case.times} if case.get("times", 1) > 1 else {}


def leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that autograd follows."""
    return [tensor.clone().requires_grad_() for tensor in tensors]

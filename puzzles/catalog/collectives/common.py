"""Inputs, oracles and claims that several puzzles of this chapter share."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from puzzles.grading.puzzle import Case, Claim, Inputs
from reference.trace import Trace

from ..ranks.common import shape_of

FLOAT = 4  # bytes of an element


def size_of(case: Case) -> int:
    """Bytes of that tensor."""
    return FLOAT * prod(shape_of(case))


def chunk_of(case: Case) -> int:
    """Bytes of its longest chunk."""
    return FLOAT * -(-prod(shape_of(case)) // case.n)


def fewest_steps(case: Case) -> int:
    """⌈log2 n⌉: in a step in which every rank sends to one other, at most twice as many hear of something."""
    return (case.n - 1).bit_length()


def operation(case: Case) -> dict[str, Any]:
    """The argument `op`, where the case names one: "AVG", "MAX"."""
    name = dict(case.parameters).get("op")
    return {"op": getattr(dist.ReduceOp, name)} if name else {}


def reduced(case: Case, tensors: Sequence[Tensor]) -> Tensor:
    """What a reduction of every rank's tensors must give."""
    every = torch.stack(list(tensors))
    match dict(case.parameters).get("op", "SUM"):
        case "SUM":
            return every.sum(0, dtype=every.dtype)
        case "AVG":
            return every.sum(0) / case.n
        case "MAX":
            return every.amax(0)
    raise ValueError(f"no oracle for {case}")


def one_tensor(case: Case, rank: int) -> dict[str, Any]:
    """`x`, and `op` where the case names one."""
    return {"x": case.tensor(rank, *shape_of(case)), **operation(case)}


def tensor_and_root(case: Case, rank: int) -> dict[str, Any]:
    """`x` and `root`, and `op` where the case names one."""
    return {"x": case.tensor(rank, *shape_of(case)), "root": case.root, **operation(case)}


def every_rank_has_the_sum(case: Case, inputs: Inputs) -> list[dict[str, Tensor]]:
    """All-reduce."""
    return [{"x": reduced(case, [each["x"] for each in inputs])}] * case.n


def every_rank_has_the_roots(case: Case, inputs: Inputs) -> list[dict[str, Tensor]]:
    """Broadcast."""
    return [{"x": inputs[case.root]["x"]}] * case.n


def neighbours_only(case: Case, inputs: Inputs, outputs: list[dict[str, Any]], trace: Trace) -> list[Claim]:
    """A ring: each rank sends to its right neighbour, and to no other."""
    ranks, claims = case.global_ranks, []
    for rank, right in zip(ranks, ranks[1:] + ranks[:1], strict=True):
        targets = sorted({message.dst for message in trace.messages if message.src == rank})
        said = f"this is no ring: rank {rank} sends to {', '.join(map(str, targets))}, not to its right neighbour alone"
        claims.append(Claim(targets in ([], [right]), said))
    return claims

"""What is wrong with a call, said on every rank before its first message: later, some ranks would wait for ever."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from .reduction import AVG, COMBINE, SUM


def check_root(root: int, group: ProcessGroup) -> None:
    """Raises ValueError for a root that is no rank of the group."""
    if not 0 <= root < group.size():
        last = group.size() - 1
        raise ValueError(f"root is a group rank, 0 to {last}, not {root}: see dist.get_group_rank")


def has_fractions(dtype: torch.dtype) -> bool:
    """True where a sum can be divided."""
    return dtype.is_floating_point or dtype.is_complex


DEFINED: dict[dist.ReduceOp, tuple[str, Callable[[torch.dtype], bool]]] = {
    AVG: ("floating-point or complex", has_fractions),
    dist.ReduceOp.MIN: ("real", lambda dtype: not dtype.is_complex),
    dist.ReduceOp.MAX: ("real", lambda dtype: not dtype.is_complex),
    dist.ReduceOp.BAND: ("integer or bool", lambda dtype: not has_fractions(dtype)),
    dist.ReduceOp.BOR: ("integer or bool", lambda dtype: not has_fractions(dtype)),
    dist.ReduceOp.BXOR: ("integer or bool", lambda dtype: not has_fractions(dtype)),
}


def check_op(op: dist.ReduceOp, dtype: torch.dtype) -> None:
    """Raises ValueError for a reduction that is not defined, or not for this dtype."""
    if op is SUM:  # nearly always, and to look it up takes as long as to add a small tensor
        return
    if op not in COMBINE:
        raise ValueError(f"op is dist.ReduceOp.{', '.join(known.name for known in COMBINE)}, not {op!r}")
    words, defined = DEFINED.get(op, ("", lambda dtype: True))
    if not defined(dtype):
        raise ValueError(f"{op} is for {words} tensors, not for {dtype}")

"""What is wrong with a call, said before its first message by every rank that can see it: later, some would wait."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .reduction import AVG, COMBINE, SUM


def check_root(root: int, group: ProcessGroup) -> None:
    """Raises ValueError for a root that is no rank of the group."""
    if not 0 <= root < group.size():
        last = group.size() - 1
        raise ValueError(f"root is a group rank, 0 to {last}, not {root}: see dist.get_group_rank")


def check_size(tensor: Tensor | None, numel: int, dtype: torch.dtype) -> None:
    """Raises ValueError for a tensor that does not fit the other one of its call, or is missing on a root."""
    if tensor is None or tensor.numel() != numel or tensor.dtype != dtype:
        given = None if tensor is None else f"of {tensor.numel()} of {tensor.dtype}"
        raise ValueError(f"a tensor of {numel} elements of {dtype} is needed here, not {given}")


def check_chunk(chunk: Tensor, whole: Tensor, rank: int, n: int) -> None:
    """Raises ValueError for a tensor that is not as long as chunk `rank` of the n of `tensor_split`."""
    size, longer = divmod(whole.numel(), n)
    check_size(chunk, size + (rank < longer), whole.dtype)


def check_transposition(x: Tensor, out: Tensor, n: int) -> None:
    """Raises ValueError for tensors that can't be cut into n chunks of one length, or are not of one size."""
    if x.numel() % n:
        raise ValueError(f"{n} ranks trade chunks of one length, and {n} does not divide {x.numel()}: see `uneven`")
    check_size(out, x.numel(), x.dtype)


def check_dense(tensor: Tensor) -> None:
    """Raises ValueError for a tensor that is no block of numbers."""
    if tensor.layout != torch.strided:
        raise ValueError(f"a collective moves dense tensors, not one of {tensor.layout}: see Tensor.to_dense")


def check_list(tensors: Sequence[Tensor], ranks: int, like: Tensor) -> None:
    """Raises ValueError for a list that has not one tensor for each rank, all of them of the size of the other one."""
    if len(tensors) != ranks:
        raise ValueError(f"a list has one tensor for each of the {ranks} ranks of the group, not {len(tensors)}")
    for tensor in tensors:
        check_size(tensor, like.numel(), like.dtype)


def has_fractions(dtype: torch.dtype) -> bool:
    """True where a sum can be divided."""
    return dtype.is_floating_point or dtype.is_complex


COMBINED = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""The dtypes that torch can add and multiply. Others, such as those of 8-bit floats, only travel."""

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
    if dtype not in COMBINED:
        raise ValueError(f"torch adds no tensors of {dtype}: convert them before they are reduced")
    if op is SUM:  # nearly always, and to look it up takes as long as to add a small tensor
        return
    if op not in COMBINE:
        raise ValueError(f"op is dist.ReduceOp.{', '.join(known.name for known in COMBINE)}, not {op!r}")
    words, defined = DEFINED.get(op, ("", lambda dtype: True))
    if not defined(dtype):
        raise ValueError(f"{op} is for {words} tensors, not for {dtype}")

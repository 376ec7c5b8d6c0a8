"""What every algorithm has to do, on any device: cases, how to run them, and one oracle.

Plain data and functions of torch alone: the tests on gloo and those on NCCL share them.

Values are small whole numbers that every rank can compute for all, so a rank checks itself; their sums are exact
in every dtype and in every order, so equal means equal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce as fold

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from reference.collectives.fast import blockwise, eager, select

SUM, AVG, MIN, MAX, PRODUCT = (getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"))
BITS = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool)

ALGORITHMS: dict[str, tuple[Callable[..., None], ...]] = {
    "broadcast": (
        broadcast.naive,
        broadcast.flat,
        broadcast.tree,
        broadcast.chain,
        eager.eager_chain,
        broadcast.scatter_all_gather,
        select.broadcast,
    ),
    "reduce": (reduce.naive, reduce.tree),
    "scatter": (scatter.naive, scatter.tree),
    "gather": (gather.naive, gather.tree),
    "all_gather": (all_gather.ring, all_gather.recursive_doubling, all_gather.bruck, select.all_gather),
    "reduce_scatter": (reduce_scatter.ring, reduce_scatter.recursive_halving, select.reduce_scatter),
    "all_reduce": (
        all_reduce.naive,
        all_reduce.ring,
        all_reduce.recursive_doubling,
        blockwise.blockwise_ring,
        eager.eager_doubling,
        all_reduce.halving_doubling,
        all_reduce.double_binary_tree,
        select.all_reduce,
    ),
    "all_to_all": (
        all_to_all.pairwise,
        all_to_all.spread_out,
        all_to_all.bruck,
        all_to_all.hypercube,
        select.all_to_all,
    ),
    "uneven": (all_to_all.uneven,),
}
ROOTED = ("broadcast", "reduce", "scatter", "gather")
REDUCING = ("reduce", "reduce_scatter", "all_reduce")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one algorithm."""

    collective: str
    algorithm: Callable[..., None]
    length: int  # of one rank's own tensor; of the whole, for all-gather and reduce-scatter, whether it divides or not
    dtype: torch.dtype = torch.float32
    op: dist.ReduceOp = SUM
    root: int = 0

    def __str__(self) -> str:
        kind = f"{self.algorithm.__module__.rpartition('.')[2]}.{self.algorithm.__name__}"
        return f"{kind} length={self.length} {self.dtype} {self.op} root={self.root}"


def lengths(values: Iterable[int], n: int) -> list[Case]:
    """Every algorithm with every length, the rooted ones with a first, middle and last root."""
    return [
        Case(collective, algorithm, length, root=root)
        for length in values
        for collective, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
        for root in (sorted({0, n // 2, n - 1}) if collective in ROOTED else (0,))
    ]


def dtypes(length: int) -> list[Case]:
    """Every algorithm with every dtype, the reducing ones with every operation that makes sense."""
    return [
        Case(collective, algorithm, length, dtype, op)
        for collective, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
        for dtype in DTYPES
        for op in (operations(dtype) if collective in REDUCING else (SUM,))
    ]


def operations(dtype: torch.dtype) -> tuple[dist.ReduceOp, ...]:
    """The reductions that are defined for a dtype."""
    if dtype in COMPLEX:
        return (SUM, AVG, PRODUCT)
    return (SUM, AVG, MIN, MAX, PRODUCT) if dtype in FLOATS else (SUM, MIN, MAX, PRODUCT, *BITS)


def mismatches(cases: Iterable[Case], group: ProcessGroup, device: str = "cpu") -> list[str]:
    """Run the cases one after another, and say which gave something else than the oracle on this rank."""
    return [difference for case in cases if (difference := mismatch(case, group, device))]


def mismatch(case: Case, group: ProcessGroup, device: str = "cpu") -> str:
    """Run a case; "" if all is as it should be."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    got, want = run(case, group, device), oracle(case, rank, n)
    if want is None or (got.dtype == want.dtype and torch.equal(got.cpu(), want)):
        return ""
    return f"group rank {rank} of {n}, {case}: expected {want.tolist()}, got {got.tolist()}"


def run(case: Case, group: ProcessGroup, device: str = "cpu") -> Tensor:
    """Call the algorithm on this rank's values and return what it left."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    x, call, is_root = contribution(case, rank, n).to(device), case.algorithm, rank == case.root
    empty = torch.zeros(0, dtype=case.dtype, device=device)
    match case.collective:
        case "broadcast":
            call(x, case.root, group)
            return x
        case "reduce":
            call(x, case.root, group, case.op)
            return x
        case "all_reduce":
            call(x, group, case.op)
            return x
        case "scatter":
            out = empty.new_zeros(case.length)
            call(out, x if is_root else None, case.root, group)
        case "gather":
            out = empty.new_zeros(n * case.length) if is_root else empty
            call(x, out if is_root else None, case.root, group)
        case "all_gather":
            out = empty.new_zeros(case.length)
            call(x, out, group)
        case "reduce_scatter":
            out = empty.new_zeros(share(case, rank, n))
            call(x, out, group, case.op)
        case "all_to_all":
            out = torch.zeros_like(x)
            call(x, out, group)
        case "uneven":
            out = empty.new_zeros(sum(splits(case, i, n)[rank] for i in range(n)), 2)
            call(x, out, splits(case, rank, n), [splits(case, i, n)[rank] for i in range(n)], group)
    unchanged = contribution(case, rank, n)
    assert torch.equal(x.cpu(), unchanged), f"{case} changed its input"
    return out


def oracle(case: Case, rank: int, n: int) -> Tensor | None:
    """What one process knows that this rank must end with; None where nothing is promised."""
    brought = [contribution(case, i, n) for i in range(n)]
    match case.collective:
        case "broadcast":
            return brought[case.root]
        case "reduce":
            return combined(brought, case.op) if rank == case.root else None
        case "all_reduce":
            return combined(brought, case.op)
        case "scatter":
            return brought[case.root].tensor_split(n)[rank]
        case "gather":
            return torch.cat(brought) if rank == case.root else None
        case "all_gather":
            return torch.cat(brought)
        case "reduce_scatter":
            return combined(brought, case.op).tensor_split(n)[rank]
        case "all_to_all":
            return torch.cat([x.tensor_split(n)[rank] for x in brought])
        case "uneven":
            return torch.cat([x.split(splits(case, i, n))[rank] for i, x in enumerate(brought)])


def contribution(case: Case, rank: int, n: int) -> Tensor:
    """What a rank brings to a case."""
    match case.collective:
        case "scatter" | "all_to_all":
            return values(rank, n * case.length, case.dtype)
        case "all_gather":
            return values(rank, share(case, rank, n), case.dtype)
        case "uneven":
            return values(rank, 2 * sum(splits(case, rank, n)), case.dtype).view(-1, 2)
    return values(rank, case.length, case.dtype)


def values(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers from -2 to 2 that differ from rank to rank; few of them 2, so that products stay small."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    drawn = torch.randint(-1, 2, (2, count), generator=generator) * (2 if rank in (1, 3) else 1)
    drawn = drawn.abs() if dtype in (torch.uint8, torch.bool) else drawn
    return torch.complex(*drawn.double()).to(dtype) if dtype in COMPLEX else drawn[0].to(dtype)


def combined(tensors: list[Tensor], op: dist.ReduceOp) -> Tensor:
    """The reduction of all, one after another."""
    two = {
        SUM: torch.add,
        AVG: torch.add,
        MIN: torch.minimum,
        MAX: torch.maximum,
        PRODUCT: torch.mul,
        BITS[0]: torch.bitwise_and,
        BITS[1]: torch.bitwise_or,
        BITS[2]: torch.bitwise_xor,
    }[op]
    total = fold(two, tensors)
    return total / len(tensors) if op == AVG else total


def share(case: Case, rank: int, n: int) -> int:
    """Length of a rank's chunk, whether the whole divides or not."""
    return case.length // n + (rank < case.length % n)


def splits(case: Case, rank: int, n: int) -> list[int]:
    """Rows that a rank sends to each; some of them none."""
    return [(3 * rank + 5 * other + case.length) % 4 for other in range(n)]

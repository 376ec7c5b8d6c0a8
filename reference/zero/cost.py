"""What a step of each strategy sends, and what a rank keeps. Exact, padding included, for any n and any lengths.

One *pass* over Ψ elements is an all-gather or a reduce-scatter: every rank sends (n-1)/n of them. An all-reduce is two
passes. So strategies differ in how many passes they make, and when (Rajbhandari et al. 2020, "ZeRO", sec. 7):

| strategy     | in each of K micro-batches             | once a step                | sent by a rank, K = 1     |
|--------------|----------------------------------------|----------------------------|---------------------------|
| DDP          |                                        | all-reduce                 | 2Ψ(n-1)/n                 |
| ZeRO-1       |                                        | reduce-scatter, all-gather | 2Ψ(n-1)/n                 |
| ZeRO-2       | reduce-scatter                         | all-gather                 | 2Ψ(n-1)/n                 |
| ZeRO-3       | all-gather, all-gather, reduce-scatter |                            | 3Ψ(n-1)/n                 |
| ... gathered | all-gather, reduce-scatter             |                            | 2Ψ(n-1)/n                 |
| HSDP         | as ZeRO-3, among s shards              | all-reduce among r replicas| 3Ψ(s-1)/s + 2(Ψ/s)(r-1)/r |

The gathers of ZeRO-3 are before forward, and again before backward unless parameters stay gathered in between. HSDP
is FSDP where there is one replica, and DDP where there is one shard.

Everything is in elements. What is gathered travels in the dtype that is computed in, what is reduced in that of
gradients; `Cost.bytes_sent` takes the size of each.

- `units` are the elements of each thing that travels by itself: a bucket of DDP, ZeRO-1 and ZeRO-2, a unit of FSDP.
  What is cut into n shards is padded to a multiple of n first; DDP needs no padding.
- `rank` matters to an all-reduce of a length that n does not divide: its ring has one chunk longer than another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step costs one rank, in elements.

    Attributes:
        gathered: elements of parameters that it sends.
        reduced: elements of gradients that it sends.
        steps: messages one after another, where no two collectives overlap: n-1 for each pass of each unit.
        parameters: that it keeps from step to step, to compute with.
        gradients: that it keeps while micro-batches add up.
        updated: parameters that it updates: for these it keeps the optimizer's state, and masters.
        passing_parameters: whole units that come and go, at most: one in use, and its neighbour on the way.
        passing_gradients: whole units of gradients that come and go, at most: one in flight while the next fills.
    """

    gathered: int
    reduced: int
    steps: int
    parameters: int
    gradients: int
    updated: int
    passing_parameters: int = 0
    passing_gradients: int = 0

    def bytes_sent(self, parameter_size: int, gradient_size: int) -> int:
        """Bytes that the rank sends, with elements of these sizes."""
        return self.gathered * parameter_size + self.reduced * gradient_size


def padded(numel: int, n: int) -> int:
    """The smallest multiple of n that has room for `numel` elements."""
    return -(-numel // n) * n


def one_pass(numel: int, n: int) -> int:
    """Elements that a rank sends in an all-gather or a reduce-scatter of `numel` elements, padded: all but a shard."""
    return padded(numel, n) // n * (n - 1)


def all_reduce(numel: int, n: int, rank: int = 0) -> int:
    """Elements that a rank sends in torch's own all-reduce, around a ring as `reference.trace.native` has it.

    It is cut as `tensor_split` cuts, and two chunks stay home: this rank's, and that of the next.
    """
    stay = sum(numel // n + ((rank + i) % n < numel % n) for i in range(2))
    return 2 * numel - stay


def elements_sent(stage: int, numel: int, ranks: int, micro_batches: int) -> int:
    """Elements that a rank sends in one step with ZeRO of this stage; stage 0 is plain data parallelism.

    Args:
        stage: 0, 1, 2 or 3.
        numel: Ψ, the number of parameters, which are padded to a multiple of the number of ranks.
        ranks: n, at least 1.
        micro_batches: K, forward and backward passes before the optimizer's step.
    """
    passes = (2, 2, micro_batches + 1, 3 * micro_batches)[stage]
    return passes * (ranks - 1) * -(-numel // ranks)


def ddp(units: Sequence[int], n: int, rank: int = 0) -> StepCost:
    """Plain data parallelism: replicas, and one all-reduce of each bucket in the last micro-batch."""
    numel = sum(units)
    return StepCost(
        gathered=0,
        reduced=sum(all_reduce(unit, n, rank) for unit in units),
        steps=2 * (n - 1) * len(units),
        parameters=numel,
        gradients=numel,
        updated=numel,
    )


def zero_1(units: Sequence[int], n: int) -> StepCost:
    """Each rank updates a shard: gradients to the one that updates them, in the last micro-batch; parameters to all."""
    passed, whole = sum(one_pass(unit, n) for unit in units), _padded(units, n)
    return StepCost(
        gathered=passed,
        reduced=passed,
        steps=2 * (n - 1) * len(units),
        parameters=whole,
        gradients=whole,
        updated=whole // n,
    )


def zero_2(units: Sequence[int], n: int, micro_batches: int = 1) -> StepCost:
    """Each rank keeps gradients of its shard alone: so each micro-batch sends the others away."""
    stage_1 = zero_1(units, n)
    return replace(
        stage_1,
        reduced=micro_batches * stage_1.reduced,
        steps=(micro_batches + 1) * (n - 1) * len(units),
        gradients=stage_1.gradients // n,
        passing_gradients=_neighbours(units, n),
    )


def zero_3(units: Sequence[int], n: int, micro_batches: int = 1) -> StepCost:
    """Each rank keeps shards alone; units are gathered before forward, and again before backward."""
    return _sharded(units, n, 2 * micro_batches, micro_batches, passing=_neighbours(units, n))


def zero_3_gathered(units: Sequence[int], n: int, micro_batches: int = 1) -> StepCost:
    """ZeRO-3 whose units stay gathered between forward and backward: fewer bytes, and all parameters at once."""
    return _sharded(units, n, micro_batches, micro_batches, passing=_padded(units, n))


def hsdp(units: Sequence[int], shards: int, replicas: int, micro_batches: int = 1, replica: int = 0) -> StepCost:
    """ZeRO-3 among the ranks of a node; once a step, replicas of a shard in different nodes add up their gradients.

    Args:
        shards: s, ranks that share one copy of the parameters.
        replicas: r, how many such copies there are.
        replica: which of them this rank belongs to.
    """
    inside = zero_3(units, shards, micro_batches)
    across = sum(all_reduce(padded(unit, shards) // shards, replicas, replica) for unit in units)
    steps = inside.steps + 2 * (replicas - 1) * len(units)
    return replace(inside, reduced=inside.reduced + across, steps=steps)


def newton_schulz_flops(rows: int, columns: int, rounds: int = 5) -> float:
    """FLOPs of Newton-Schulz on a whole matrix: in each round XXᵀ, its square, and a product of that with X."""
    small, large = sorted((rows, columns))
    return rounds * (4 * small**2 * large + 2 * small**3)


def shampoo_flops(rows: int, columns: int) -> float:
    """FLOPs of a step of Shampoo on a whole matrix.

    Two squares, a product from the left and one from the right; of each square the eigenvectors, about 9 n³ (Golub and
    Van Loan 2013, "Matrix computations", section 8.3), and a product to make a root of them.
    """
    return 4 * rows * columns * (rows + columns) + 11 * (rows**3 + columns**3)


def soap_flops(rows: int, columns: int, every: int = 10) -> float:
    """FLOPs of a step of SOAP on a whole matrix.

    Two squares; gradient, momentum and direction between the axes. Each `every` steps axes are turned: a product, and a
    QR decomposition whose Q is made, 14/3 n³ together (Golub and Van Loan 2013, "Matrix computations", section 5.2).
    """
    return 8 * rows * columns * (rows + columns) + 14 / 3 * (rows**3 + columns**3) / every


def whole_matrices(
    numels: Sequence[int], owners: Sequence[int], held: Sequence[Sequence[int]], copies: int, rank: int
) -> int:
    """Elements that a rank sends in a step so that each matrix is updated by one rank that has it whole.

    Pieces of matrices that others own go there, from one of the ranks that hold them; what this rank has made of its
    own goes to all that hold any of it. Replicas send nothing there, and everything back.

    Args:
        numels: elements of each matrix.
        owners: the rank that owns it.
        held: by matrix, how many of its elements each rank holds.
        copies: of the model, each of which one owner's pieces come from. Owners have their pieces from their own copy:
            ranks [k n / copies, (k + 1) n / copies) are one.
        rank: that sends.
    """
    n, sent = len(held[0]), 0
    size = n // copies
    for numel, owner, of in zip(numels, owners, held, strict=True):
        if owner == rank:
            sent += sum(of) - of[rank]
        elif owner // size == rank // size and of[owner] < numel:
            sent += of[rank]
    return sent


def _sharded(units: Sequence[int], n: int, gathers: int, reductions: int, passing: int) -> StepCost:
    passed, shard = sum(one_pass(unit, n) for unit in units), _padded(units, n) // n
    return StepCost(
        gathered=gathers * passed,
        reduced=reductions * passed,
        steps=(gathers + reductions) * (n - 1) * len(units),
        parameters=shard,
        gradients=shard,
        updated=shard,
        passing_parameters=passing,
        passing_gradients=_neighbours(units, n),
    )


def _padded(units: Sequence[int], n: int) -> int:
    return sum(padded(unit, n) for unit in units)


def _neighbours(units: Sequence[int], n: int) -> int:
    """The most that two units have together which follow each other."""
    lengths = [padded(unit, n) for unit in units]
    return max((one + other for one, other in pairwise(lengths)), default=sum(lengths))

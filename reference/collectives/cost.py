"""What each algorithm costs: steps, and the bytes that each rank sends. Exact, for any n and any length.

`of(all_reduce.ring).steps(n, numel, itemsize)` is the length of the longest chain of messages that depend on each
other, as `Trace.steps`; `of(all_reduce.ring).bytes(rank, n, numel, itemsize)` is what `Trace.bytes_sent[rank]` says.

- `numel` counts the whole tensor, of n chunks: the output of an all-gather or gather, the input of a reduce-scatter,
  scatter or all-to-all; for the others the only one. A barrier has none: its messages are single bytes.
- `rank` is the group rank; with a root, it counts from the root.
- Large messages that are added up on arrival travel in pieces (`exchange.PIECE`), and two pieces are a step.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    binomial,
    broadcast,
    double_tree,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from .chunks import offsets
from .exchange import PIECE
from .fast import blockwise, eager
from .hypercube import Hypercube, hypercube


@dataclass(frozen=True, slots=True)
class Cost:
    """The formulas of one algorithm."""

    steps: Callable[[int, int, int], int]  # (n, numel, itemsize)
    elements: Callable[[int, int, int], int]  # (rank, n, numel): what a rank sends

    def bytes(self, rank: int, n: int, numel: int, itemsize: int) -> int:
        """Bytes that a rank sends."""
        return self.elements(rank, n, numel) * itemsize

    def most(self, n: int, numel: int, itemsize: int) -> int:
        """Bytes sent by the rank that sends most."""
        return max(self.bytes(rank, n, numel, itemsize) for rank in range(n))


def of(algorithm: Callable[..., None]) -> Cost:
    """The cost of an algorithm of this package, with the arguments it has by default.

    Raises:
        KeyError: an algorithm whose cost depends on more: see `hierarchical` and `uneven_bytes`.
    """
    return _COSTS[algorithm]


def hierarchical(nodes: int, ranks_per_node: int) -> Cost:
    """The cost of `all_reduce.hierarchical`. `rank` counts within the node, n is `nodes * ranks_per_node`."""
    m, l = nodes, ranks_per_node  # noqa: E741, the letters of its docstring
    ring = _COSTS[all_reduce.ring]

    def elements(rank: int, n: int, numel: int) -> int:
        """By a rank of the first node; shards go around between nodes, whose ranks cut them once more."""
        within = 2 * numel - _chunk(rank % l, l, numel) - _chunk(rank % l + 1, l, numel)
        return within + ring.elements(rank // l, m, _chunk(rank % l, l, numel))

    return Cost(lambda n, numel, size: 2 * (l - 1) + ring.steps(m, _chunk(0, l, numel), size), elements)


def uneven_bytes(rank: int, in_splits: list[int], row: int) -> int:
    """Bytes that a rank sends in `all_to_all.uneven`: all rows of `row` bytes but its own. It takes n-1 steps."""
    return (sum(in_splits) - in_splits[rank]) * row


def _chunk(index: int, n: int, numel: int) -> int:
    """Elements of chunk `index` (mod n) of n, as `tensor_split` cuts them."""
    return numel // n + (index % n < numel % n)


def _up(n: int) -> int:
    """ceil(log2 n): how many doublings make n of 1."""
    return (n - 1).bit_length()


def _steps_of(numel: int, itemsize: int) -> int:
    """How many steps `exchange_reduce` makes of a tensor: two pieces are under way at once."""
    pieces = max(1, -(-numel // (PIECE // itemsize)))
    return -(-pieces // 2)


def _linear(n: int, numel: int, itemsize: int) -> int:
    return n - 1


def _logarithmic(n: int, numel: int, itemsize: int) -> int:
    return _up(n)


def _cube_steps(n: int, numel: int, itemsize: int) -> int:
    """log2 p along the edges of a hypercube; one more into it and one out of it where ranks sit out."""
    cube = hypercube(0, n)
    return _up(cube.vertices) + 2 * (cube.vertices < n)


def _recursive_doubling_gather(rank: int, n: int, numel: int) -> int:
    """In each step what `distance` vertices stand for; one that sits out, its own; its partner all of it at the end."""
    cube, start = hypercube(rank, n), offsets(numel, n)
    if cube.sits_out:
        return start[rank + 1] - start[rank]
    return _held(cube, start, other=0) + (0 if cube.partner is None else numel)


def _recursive_halving_scatter(rank: int, n: int, numel: int) -> int:
    """In each step what the other side's `distance` vertices stand for; one that sits out, everything."""
    cube, start = hypercube(rank, n), offsets(numel, n)
    if cube.sits_out:
        return numel
    return _held(cube, start, other=1) + (0 if cube.partner is None else start[rank + 2] - start[rank + 1])


def _held(cube: Hypercube, start: tuple[int, ...], other: int) -> int:
    """Over all distances: elements of the sub-cube that a vertex is in, or of the `other` one beside it."""
    total = 0
    for distance, _ in cube.neighbours:
        first = (cube.vertex & -distance) ^ distance * other
        total += start[cube.rank_of(first + distance)] - start[cube.rank_of(first)]
    return total


def _bruck_gather(rank: int, n: int, numel: int) -> int:
    """The first chunks of those held, counted from one's own: 1, 2, 4, ... and what is missing at last."""
    counts = [min(1 << step, n - (1 << step)) for step in range(_up(n))]
    return sum(_chunk(rank + i, n, numel) for count in counts for i in range(count))


def _bitwise_all_to_all(rank: int, n: int, numel: int) -> int:
    """A chunk travels once for each bit of its distance d: ranks to the right, or bits that differ."""
    return sum(d.bit_count() for d in range(n)) * (numel // n)


def _ring_all_reduce(rank: int, n: int, numel: int) -> int:
    """All chunks but one in each half of the way."""
    return 2 * numel - _chunk(rank + 1, n, numel) - _chunk(rank + 2, n, numel)


def _blockwise_all_reduce(rank: int, n: int, numel: int) -> int:
    """A ring for each block, of which the last may not divide."""
    blocks, rest = divmod(numel, n * blockwise.CHUNK)
    return 2 * (n - 1) * blocks * blockwise.CHUNK + _ring_all_reduce(rank, n, rest)


def _blockwise_steps(n: int, numel: int, itemsize: int) -> int:
    """Two blocks are under way at once."""
    blocks = max(1, -(-numel // (n * blockwise.CHUNK)))
    return 2 * (n - 1) * -(-blocks // 2)


def _ring_steps(n: int, numel: int, itemsize: int) -> int:
    return (n - 1) * (_steps_of(_chunk(0, n, numel), itemsize) + 1)


def _recursive_doubling_all_reduce(rank: int, n: int, numel: int) -> int:
    cube = hypercube(rank, n)
    return numel if cube.sits_out else (_up(cube.vertices) + (cube.partner is not None)) * numel


def _halving_doubling_all_reduce(rank: int, n: int, numel: int) -> int:
    """At each level one half on the way there, the other half on the way back: together what was split."""
    cube = hypercube(rank, n)
    if cube.sits_out:
        return numel
    total, held = (0 if cube.partner is None else numel), numel
    for distance, _ in cube.neighbours:
        total += held
        held = held // 2 if cube.vertex & distance else held - held // 2
    return total


def _halving_doubling_steps(n: int, numel: int, itemsize: int) -> int:
    halves = (-(-numel >> level) for level in range(1, hypercube(0, n).vertices.bit_length()))
    return _cube_steps(n, numel, itemsize) + sum(_steps_of(half, itemsize) for half in halves)


def _double_tree(rank: int, n: int, numel: int) -> int:
    """A half to each parent on the way up, a half to each child on the way down."""
    halves = numel - numel // 2, numel // 2
    return sum(halves[tree] for tree, *ends in double_tree.edges(n) if rank in ends)


def _double_tree_steps(n: int, numel: int, itemsize: int) -> int:
    """The longest chain through its schedule, up and then down. What happens at one moment is one step at most."""
    up = double_tree.schedule(n, double_tree.PIECES)
    done = [0] * n
    for hops in (up, up[::-1]):
        for time in dict.fromkeys(hop.time for hop in hops):
            together = [hop for hop in hops if hop.time == time]
            steps = [1 + max(done[hop.child], done[hop.parent]) for hop in together]
            for hop, step in zip(together, steps, strict=True):
                done[hop.child] = max(done[hop.child], step)
                done[hop.parent] = max(done[hop.parent], step)
    return max(done)


_DOUBLING = Cost(
    lambda n, numel, size: 2 * (hypercube(0, n).vertices < n) + _up(hypercube(0, n).vertices) * _steps_of(numel, size),
    _recursive_doubling_all_reduce,
)

_COSTS: dict[Callable[..., None], Cost] = {
    broadcast.naive: Cost(_linear, lambda rank, n, numel: (n - 1) * numel if rank == 0 else 0),
    broadcast.flat: Cost(lambda n, numel, size: min(1, n - 1), lambda rank, n, numel: 0 if rank else (n - 1) * numel),
    broadcast.tree: Cost(_logarithmic, lambda rank, n, numel: len(binomial.children(rank, n)) * numel),
    broadcast.chain: Cost(
        lambda n, numel, size: n - 2 + broadcast.PIECES if n > 1 else 0,
        lambda rank, n, numel: numel if rank < n - 1 else 0,
    ),
    eager.eager_chain: Cost(_linear, lambda rank, n, numel: numel if rank < n - 1 else 0),
    broadcast.scatter_all_gather: Cost(
        lambda n, numel, size: min(2, n - 1),
        lambda rank, n, numel: (n - 2) * _chunk(rank - 1, n - 1, numel) if rank else min(1, n - 1) * numel,
    ),
    reduce.naive: Cost(_linear, lambda rank, n, numel: numel if rank else 0),
    reduce.tree: Cost(_logarithmic, lambda rank, n, numel: numel if rank else 0),
    scatter.naive: Cost(_linear, lambda rank, n, numel: 0 if rank else (n - 1) * (numel // n)),
    scatter.tree: Cost(_logarithmic, lambda rank, n, numel: (binomial.family(rank, n) - 1) * (numel // n)),
    gather.naive: Cost(_linear, lambda rank, n, numel: numel // n if rank else 0),
    gather.tree: Cost(_logarithmic, lambda rank, n, numel: binomial.family(rank, n) * (numel // n) if rank else 0),
    all_gather.ring: Cost(_linear, lambda rank, n, numel: numel - _chunk(rank + 1, n, numel)),
    all_gather.recursive_doubling: Cost(_cube_steps, _recursive_doubling_gather),
    all_gather.bruck: Cost(_logarithmic, _bruck_gather),
    reduce_scatter.ring: Cost(_linear, lambda rank, n, numel: numel - _chunk(rank, n, numel)),
    reduce_scatter.recursive_halving: Cost(_cube_steps, _recursive_halving_scatter),
    all_reduce.naive: Cost(
        lambda n, numel, size: 2 * (n - 1), lambda rank, n, numel: numel if rank else (n - 1) * numel
    ),
    all_reduce.ring: Cost(_ring_steps, _ring_all_reduce),
    blockwise.blockwise_ring: Cost(_blockwise_steps, _blockwise_all_reduce),
    all_reduce.recursive_doubling: _DOUBLING,
    eager.eager_doubling: _DOUBLING,
    all_reduce.halving_doubling: Cost(_halving_doubling_steps, _halving_doubling_all_reduce),
    all_reduce.double_binary_tree: Cost(_double_tree_steps, _double_tree),
    all_to_all.pairwise: Cost(_linear, lambda rank, n, numel: numel - numel // n),
    all_to_all.spread_out: Cost(lambda n, numel, size: min(1, n - 1), lambda rank, n, numel: numel - numel // n),
    all_to_all.bruck: Cost(_logarithmic, _bitwise_all_to_all),
    all_to_all.hypercube: Cost(_logarithmic, _bitwise_all_to_all),
    barrier.dissemination: Cost(_logarithmic, lambda rank, n, numel: _up(n)),
}

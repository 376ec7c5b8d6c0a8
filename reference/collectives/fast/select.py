"""For each collective, the algorithm that suits the number of ranks and the size.

A message costs a latency and its bytes. Here the latency is counted in bytes too: as many as could have been sent in
that time. Steps times latency plus bytes is then one number, and the smallest wins.

Tensors are those of the algorithms chosen: contiguous, of one dtype, of any length but in `all_to_all`, where n divides
it. A ValueError says where a root, a reduction or a size does not fit.
"""

from collections.abc import Callable
from functools import lru_cache

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .. import all_gather as all_gathers
from .. import all_reduce as all_reduces
from .. import all_to_all as all_to_alls
from .. import broadcast as broadcasts
from .. import cost
from .. import reduce_scatter as reduce_scatters
from ..exchange import PIECE
from ..reduction import SUM
from . import blockwise, eager

LATENCY = 192 << 10  # bytes that gloo moves between two processes of one machine while a message is in flight
SMALL = 64 << 10  # bytes: up to here copies within a rank count for less than messages
LARGE = 2 << 20  # bytes: from here on copies within a rank count for more than steps
CACHE = 32 << 20  # bytes that ranks of one processor share: where all their tensors fit in, blocks save nothing
MANY = 8  # ranks: from here on it counts which of them sends how much

ALL_REDUCES = (eager.eager_doubling, all_reduces.halving_doubling, all_reduces.ring)


@lru_cache
def cheapest(algorithms: tuple[Callable[..., None], ...], n: int, numel: int, itemsize: int) -> Callable[..., None]:
    """The algorithm of least cost for `numel` elements on n ranks; the first of several."""

    def price(algorithm: Callable[..., None]) -> int:
        costs = cost.of(algorithm)
        return costs.steps(n, numel, itemsize) * LATENCY + costs.most(n, numel, itemsize)

    return min(algorithms, key=price)


def broadcast(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place."""
    n = group.size()
    if x.nbytes >= n * PIECE:
        eager.eager_chain(x, root, group)
    elif x.nbytes >= LARGE and n > 2:
        broadcasts.scatter_all_gather(x, root, group)
    else:
        algorithms = (broadcasts.flat, broadcasts.tree)
        cheapest(algorithms, n, x.numel(), x.element_size())(x, root, group)


def all_gather(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Collect every rank's `x` in `out`."""
    n = group.size()
    if out.nbytes >= LARGE:
        all_gathers.ring(x, out, group)
    elif n & (n - 1) == 0:
        all_gathers.recursive_doubling(x, out, group)
    else:
        all_gathers.bruck(x, out, group)


def reduce_scatter(x: Tensor, out: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce chunk i of every rank's `x` into the `out` of rank i."""
    n = group.size()
    small = x.numel() * x.element_size() < LARGE
    algorithm = reduce_scatters.recursive_halving if small and n & (n - 1) == 0 else reduce_scatters.ring
    algorithm(x, out, group, op)


def all_reduce(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place."""
    n, numel, size = group.size(), x.numel(), x.element_size()
    if numel * size < LARGE:
        algorithm = cheapest(ALL_REDUCES, n, numel, size)
    else:
        algorithm = all_reduces.ring if n * numel * size <= CACHE else blockwise.blockwise_ring
    algorithm(x, group, op)


def all_to_all(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Send chunk j of `x` to rank j, whose `out` has it as chunk i."""
    many = group.size() >= MANY
    algorithm = all_to_alls.hypercube if many and x.nbytes <= SMALL else all_to_alls.spread_out
    algorithm(x, out, group)

"""All receives before the first send: on gloo a step then costs one way instead of two.

gloo's sender waits for the receiver's word that it is ready. Here that word is long there when a step begins.

| algorithm      | steps  | bytes sent by a rank | good for                                       |
|----------------|--------|----------------------|------------------------------------------------|
| eager doubling | log2 n | log2 n · size        | small tensors on gloo                          |
| eager chain    | n-1    | size                 | broadcasts of large tensors, on gloo           |
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..all_reduce import recursive_doubling
from ..broadcast import chain
from ..checks import check_root
from ..exchange import PIECE, TAG, pieces, wait
from ..hypercube import fold, hypercube, unfold
from ..reduction import SUM, combine, finish

EAGER = PIECE  # bytes: larger tensors travel in pieces


def eager_doubling(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: recursive doubling with all receives posted before the first send.

    gloo's sender waits for the receiver's word that it is ready. Here that word is long there when a step begins, and
    each step costs one way instead of two. The price is a buffer for each step instead of one, so large tensors take
    the usual way; and so do GPUs, since NCCL runs calls in the order in which they were posted.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; two more steps where n is no power of two.
        op: how to combine.
    """
    if x.is_cuda or x.nbytes > EAGER:
        recursive_doubling(x, group, op)
        return
    cube = hypercube(group.rank(), group.size())
    fold(x, cube, group, op)
    if not cube.sits_out:
        arrivals = []
        for _, neighbour in cube.neighbours:  # not by `start`: its lists take a tenth of the time of a small tensor
            received = torch.empty_like(x)
            arrivals.append((neighbour, received, group.recv([received], neighbour, TAG)))
        for neighbour, received, arrival in arrivals:
            departure = group.send([x], neighbour, TAG)
            arrival.wait()
            departure.wait()
            combine(x, received, op)
        finish(x, cube.n, op)
    unfold(x, cube, group)


def eager_chain(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place: a chain with all receives posted before the first send.

    gloo's sender waits for the receiver's word that it is ready. Here that word is long there, and pieces follow each
    other as fast as they are copied. GPUs take the usual way: NCCL runs calls in the order in which they were posted.

    Args:
        x: contiguous, the same shape and dtype on every rank. Pieces have `exchange.PIECE` bytes.
        root: group rank.
        group: n ranks. Any n.
    """
    parts = pieces(x.view(-1))
    if x.is_cuda:
        chain(x, root, group, len(parts))
        return
    check_root(root, group)
    rank, n = group.rank(), group.size()
    right, left = (rank + 1) % n, (rank - 1) % n
    arrivals = [] if rank == root else [group.recv([part], left, TAG) for part in parts]
    departures = []
    for i, part in enumerate(parts):
        wait(arrivals[i : i + 1])
        if right != root:
            departures.append(group.send([part], right, TAG))
    wait(departures)

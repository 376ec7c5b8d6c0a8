"""All-gather: every rank ends with all ranks' tensors, one after the other.

| algorithm          | steps        | bytes sent by a rank | good for                           |
|--------------------|--------------|----------------------|------------------------------------|
| ring               | n-1          | (n-1)/n · size       | large tensors, links to neighbours |
| recursive doubling | log2 n       | (n-1)/n · size       | n a power of two                   |
| Bruck              | ceil(log2 n) | (n-1)/n · size       | small tensors, any n               |

`size` is that of the output. No algorithm can do with fewer bytes: each rank has to receive (n-1)/n of it. Where n is
no power of two, recursive doubling takes two more steps and some ranks send more.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .checks import check_chunk
from .chunks import copy, offsets
from .exchange import exchange
from .hypercube import hypercube


def ring(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Collect every rank's `x` in `out`: each rank passes on to the right what it last got from the left.

    Args:
        x: contiguous, same dtype on every rank; may be this rank's chunk of `out` itself.
        out: contiguous, room for all: n * x.numel() elements. If its length does not divide by n, the chunks are
            those of `tensor_split`, and `x` has the length of this rank's chunk.
        group: n ranks. Any n.

    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    rank, n = group.rank(), group.size()
    check_chunk(x, out, rank, n)
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = out.view(-1).tensor_split(n)
    copy(x, chunks[rank])
    for step in range(n - 1):
        exchange(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left, group)


def recursive_doubling(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Collect every rank's `x` in `out`: swap all one has with a rank 1, then 2, then 4, ... away.

    Args:
        x: contiguous, same dtype on every rank; may be this rank's chunk of `out` itself.
        out: contiguous, room for all: n * x.numel() elements, or any length: chunks as those of `tensor_split`.
        group: n ranks. Any n; two more steps where n is no power of two.

    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    rank, n = group.rank(), group.size()
    check_chunk(x, out, rank, n)
    cube, flat, start = hypercube(rank, n), out.view(-1), offsets(out.numel(), n)

    def held(vertex: int, count: int = 1) -> Tensor:
        """What `count` vertices from `vertex` on stand for."""
        return flat[start[cube.rank_of(vertex)] : start[cube.rank_of(vertex + count)]]

    copy(x, flat[start[rank] : start[rank + 1]])
    if cube.sits_out:
        dist.send(flat[start[rank] : start[rank + 1]], group=group, group_dst=cube.partner)
        dist.recv(flat, group=group, group_src=cube.partner)
        return
    if cube.partner is not None:
        dist.recv(flat[start[rank + 1] : start[rank + 2]], group=group, group_src=cube.partner)
    for distance, neighbour in cube.neighbours:
        mine = cube.vertex & -distance  # the first of the `distance` vertices that have the same by now
        exchange(held(mine, distance), neighbour, held(mine ^ distance, distance), neighbour, group)
    if cube.partner is not None:
        dist.send(flat, group=group, group_dst=cube.partner)


def bruck(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Collect every rank's `x` in `out`: double what one has in each step, with chunks counted from one's own.

    Args:
        x: contiguous, same dtype on every rank; may be this rank's chunk of `out` itself.
        out: contiguous, room for all: n * x.numel() elements, or any length: chunks as those of `tensor_split`.
        group: n ranks. Any n.

    Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport message-passing systems".
    """
    rank, n = group.rank(), group.size()
    check_chunk(x, out, rank, n)
    chunks = out.view(-1).tensor_split(n)
    order = [(rank + i) % n for i in range(n)]
    held = torch.empty_like(out).view(-1)  # chunk rank, chunk rank + 1, ..., around the end
    places = held.split([chunks[i].numel() for i in order])
    start = [0]
    for place in places:
        start.append(start[-1] + place.numel())
    copy(x, places[0])
    count = 1
    while count < n:
        more = min(count, n - count)
        target, source = (rank - count) % n, (rank + count) % n
        exchange(held[: start[more]], target, held[start[count] : start[count + more]], source, group)
        count += more
    for i, place in zip(order, places, strict=True):
        chunks[i].copy_(place)

"""All-to-all: rank i's chunk j becomes rank j's chunk i. A transposition.

| algorithm  | steps        | bytes sent by a rank     | good for                                                  |
|------------|--------------|--------------------------|-----------------------------------------------------------|
| pairwise   | n-1          | (n-1)/n · size           | large tensors: one message at a time on each link         |
| spread out | 1            | (n-1)/n · size           | a network that sorts n-1 messages at once out by itself   |
| Bruck      | ceil(log2 n) | about log2 n / 2 · size  | tiny tensors                                              |
| hypercube  | log2 n       | log2 n / 2 · size        | small tensors, n a power of two                           |
| uneven     | n-1          | all but its own rows     | chunks of different lengths: tokens on their way to experts |
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .checks import check_size, check_transposition
from .chunks import copy
from .exchange import exchange, start_swaps, wait


def pairwise(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Send chunk j of `x` to rank j, whose `out` has it as chunk i: in step s to the rank s to the right.

    Args:
        x: contiguous, n chunks of the same length one after another.
        out: contiguous, the same shape and dtype as `x`, other memory.
        group: n ranks. Any n; x.numel() divides by n.

    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    rank, n = group.rank(), group.size()
    check_transposition(x, out, n)
    chunks, places = x.view(n, x.numel() // n), out.view(n, x.numel() // n)
    places[rank] = chunks[rank]
    for step in range(1, n):
        target, source = (rank + step) % n, (rank - step) % n
        exchange(chunks[target], target, places[source], source, group)


def spread_out(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Send chunk j of `x` to rank j, whose `out` has it as chunk i: all of them at once.

    Each rank begins with its right neighbour, so that they do not all fall upon rank 0.

    Args:
        x: contiguous, n chunks of the same length one after another.
        out: contiguous, the same shape and dtype as `x`, other memory.
        group: n ranks. Any n; x.numel() divides by n.

    Kang et al. 2020, "Improving MPI collective I/O for high volume non-contiguous requests", call it so; MPICH's
    algorithm for middle sizes.
    """
    rank, n = group.rank(), group.size()
    check_transposition(x, out, n)
    chunks, places = x.view(n, x.numel() // n).unbind(), out.view(n, x.numel() // n).unbind()
    requests = start_swaps(chunks, places, [*range(rank + 1, n), *range(rank)], group)
    places[rank].copy_(chunks[rank])
    wait(requests)


def bruck(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Send chunk j of `x` to rank j, whose `out` has it as chunk i: in few steps, through other ranks.

    A chunk that has to go d ranks to the right travels 2^k of them in step k, for each bit k of d.

    Args:
        x: contiguous, n chunks of the same length one after another.
        out: contiguous, the same shape and dtype as `x`, other memory.
        group: n ranks. Any n; x.numel() divides by n.

    Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport message-passing systems".
    """
    rank, n = group.rank(), group.size()
    check_transposition(x, out, n)
    chunks = x.view(n, x.numel() // n).unbind()
    held = [chunks[(rank + d) % n] for d in range(n)]  # held[d] has to go d ranks to the right
    distance = 1
    while distance < n:
        travellers = [d for d in range(n) if d & distance]
        outgoing = torch.cat([held[d] for d in travellers])
        incoming = torch.empty_like(outgoing)
        exchange(outgoing, (rank + distance) % n, incoming, (rank - distance) % n, group)
        for d, chunk in zip(travellers, incoming.tensor_split(len(travellers)), strict=True):
            held[d] = chunk
        distance *= 2
    torch.cat([held[(rank - i) % n] for i in range(n)], out=out.view(-1))  # held[d] came from d ranks to the left


def hypercube(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """Send chunk j of `x` to rank j, whose `out` has it as chunk i: bit by bit of their ranks.

    The number of a held chunk begins with bits of the rank that it has to go to and ends with bits of the one that it
    comes from. A step trades half of the chunks for those of the neighbour whose first of these bits is the other one.
    Now that bit is right in all of them, and where it came from is put at the end. So halves are contiguous, always,
    and a step takes one copy. Other n than powers of two take Bruck's way.

    Args:
        x: contiguous, n chunks of the same length one after another.
        out: contiguous, the same shape and dtype as `x`, other memory.
        group: n ranks. Any n; x.numel() divides by n.

    Johnsson & Ho 1989, "Optimum broadcasting and personalized communication in hypercubes": standard exchange.
    """
    rank, n = group.rank(), group.size()
    check_transposition(x, out, n)
    if n & (n - 1):
        bruck(x, out, group)
        return
    held, distance = x, n // 2
    while distance:
        halves = held.view(2, n // 2, x.numel() // n).unbind()  # for ranks with a 0 here, and with a 1
        bit = rank // distance % 2
        received, neighbour = torch.empty_like(halves[bit]), rank ^ distance
        exchange(halves[1 - bit], neighbour, received, neighbour, group)
        held = torch.stack((received, halves[1]) if bit else (halves[0], received), dim=1)
        distance //= 2
    copy(held, out)


def uneven(x: Tensor, out: Tensor, in_splits: list[int], out_splits: list[int], group: ProcessGroup) -> None:
    """Send in_splits[j] rows of `x` to rank j, for each j, and receive out_splits[i] rows from rank i.

    Args:
        x: contiguous, sum(in_splits) rows along dim 0.
        out: contiguous, sum(out_splits) rows along dim 0, same dtype and further shape.
        in_splits: rows for each rank; zeros are fine.
        out_splits: rows from each rank: what its in_splits say for this one.
        group: n ranks. Any n.

    Raises:
        ValueError: if a rank's rows for itself are not as many in both, or of another dtype.
    """
    rank, n = group.rank(), group.size()
    chunks, places = x.split(in_splits), out.split(out_splits)
    check_size(places[rank], chunks[rank].numel(), x.dtype)
    places[rank].copy_(chunks[rank])
    for step in range(1, n):
        target, source = (rank + step) % n, (rank - step) % n
        exchange(chunks[target], target, places[source], source, group)

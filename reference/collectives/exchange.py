"""One step of an algorithm: send to one rank while receiving from another.

Ranks that all send first, or all receive first, wait for each other forever. So crossing sends and receives are
posted together and then waited for. With NCCL "together" means one batch: it runs calls in the order they were posted.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from .reduction import SUM, combine

TAG = 0  # of all messages: those between two ranks keep their order
PIECE = 2 << 20  # bytes: what was received is added up while it is still in the processor's cache

Message = tuple[Tensor, int]  # a tensor, and the group rank it goes to or comes from


def start(sends: Sequence[Message], receives: Sequence[Message], group: ProcessGroup) -> list[Work]:
    """Start all of these at once; they are done when each of the requests has been waited for."""
    if not (sends or receives):
        return []
    if (sends or receives)[0][0].is_cuda:
        batch = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=source) for tensor, source in receives]
        batch += [dist.P2POp(dist.isend, tensor, group=group, group_peer=target) for tensor, target in sends]
        return dist.batch_isend_irecv(batch)
    # gloo starts each call by itself, so there is no need for a batch. What irecv and isend end in, without their
    # questions about the group, saves a tenth of a small message's time
    requests = [group.recv([tensor], source, TAG) for tensor, source in receives]
    return requests + [group.send([tensor], target, TAG) for tensor, target in sends]


def start_swaps(
    outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Sequence[int], group: ProcessGroup
) -> list[Work]:
    """Start to swap `outgoing[i]` for `incoming[i]` with each peer i; done as in `start`.

    On gloo a peer's message can leave while the next peer's are still being posted: for many small ones that takes a
    tenth less than all receives before all sends.
    """
    if outgoing[0].is_cuda:
        return start([(outgoing[i], i) for i in peers], [(incoming[i], i) for i in peers], group)
    requests = []
    for i in peers:
        requests.append(group.recv([incoming[i]], i, TAG))
        requests.append(group.send([outgoing[i]], i, TAG))
    return requests


def wait(requests: Iterable[Work]) -> None:
    """Return when all of these are done."""
    for request in requests:
        request.wait()


def exchange(
    outgoing: Tensor | None, target: int | None, incoming: Tensor | None, source: int | None, group: ProcessGroup
) -> None:
    """Send `outgoing` to `target` while receiving `incoming` from `source`; return when both are done.

    Args:
        outgoing: contiguous, any shape; None where nothing is to be sent.
        target: group rank.
        incoming: contiguous, of the size and dtype that `source` sends; None where nothing comes.
        source: group rank.
        group: the ranks that talk.
    """
    sends = () if outgoing is None else ((outgoing, target),)
    receives = () if incoming is None else ((incoming, source),)
    wait(start(sends, receives, group))


def exchange_reduce(
    outgoing: Tensor, target: int, accumulator: Tensor, source: int, group: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """Send `outgoing` to `target` while combining what `source` sends into `accumulator`.

    Tensors larger than `PIECE` travel in pieces: one is under way while the one before is combined. The two may be the
    same tensor.

    Args:
        outgoing: flat.
        target: group rank.
        accumulator: flat, of the size and dtype that `source` sends; its own values are combined with what comes.
        source: group rank.
        group: the ranks that talk.
        op: how to combine; the caller has checked that it is defined for the dtype.
    """
    if max(outgoing.nbytes, accumulator.nbytes) <= PIECE:
        received = torch.empty_like(accumulator)
        exchange(outgoing, target, received, source, group)
        combine(accumulator, received, op)
        return

    def swap(piece: Tensor | None, into: Tensor | None) -> Iterator[None]:
        received = None if into is None else torch.empty_like(into)
        sends = () if piece is None else ((piece, target),)
        receives = () if into is None else ((received, source),)
        requests = start(sends, receives, group)
        yield
        wait(requests)
        if into is not None:
            combine(into, received, op)

    run_pipelined(swap(*pair) for pair in zip_longest(pieces(outgoing), pieces(accumulator)))


def run_pipelined(routines: Iterable[Iterator[None]]) -> None:
    """Run all of these to their ends, two at a time, in the same turns on every rank.

    Each gives way (`yield`) when its messages are under way: then the other one computes.
    """
    routines = iter(routines)
    running = deque(islice(routines, 2))
    while running:
        routine = running.popleft()
        for _ in routine:
            running.append(routine)
            break
        else:
            running.extendleft(islice(routines, 1))


def pieces(x: Tensor) -> tuple[Tensor, ...]:
    """A flat tensor in pieces of at most `PIECE` bytes."""
    return x.split(PIECE // x.element_size()) if x.nbytes > PIECE else (x,)

"""A field guide to mistakes with messages: twelve programs for two ranks, each of which makes one.

Alone, PyTorch lets some of them hang for half an hour, and some of them pass. `Cluster(2, watch=True)` gives each the
line that it deserves. They are here to be read, run and recognised; `tests/watch/zoo` has many more.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def both_receive_first() -> None:
    """Each waits for the other to begin."""
    other, x = 1 - dist.get_rank(), torch.zeros(4)
    dist.recv(x, src=other)
    dist.send(x, dst=other)


def both_send_first() -> None:
    """The same, seen from the other side: a send waits for its receive, even with four numbers."""
    other, x = 1 - dist.get_rank(), torch.zeros(4)
    dist.send(x, dst=other)
    dist.recv(x, src=other)


def no_rank_receives() -> None:
    """A send without a receive: the other rank's branch was forgotten."""
    if dist.get_rank() == 0:
        dist.send(torch.zeros(4), dst=1)


def a_rank_that_is_not_there() -> None:
    """Ranks are counted from 0, so the last of two is rank 1."""
    dist.send(torch.zeros(4), dst=dist.get_world_size())


def different_sizes() -> None:
    """The receiver believes in another batch size. Alone, gloo fills half a buffer and says nothing."""
    if dist.get_rank() == 0:
        dist.send(torch.zeros(4, 4), dst=1)
    else:
        dist.recv(torch.zeros(4, 8), src=0)


def different_dtypes() -> None:
    """One side has been cast to bfloat16. The bytes would arrive, and mean something else."""
    x = torch.zeros(8, dtype=torch.bfloat16 if dist.get_rank() == 0 else torch.float32)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)


def different_tags() -> None:
    """Both talk to the right rank, about different things."""
    if dist.get_rank() == 0:
        dist.send(torch.zeros(4), dst=1, tag=1)
    else:
        dist.recv(torch.zeros(4), src=0, tag=2)


def never_waited_for() -> None:
    """A request is a promise that its caller must collect."""
    if dist.get_rank() == 0:
        dist.isend(torch.zeros(4), dst=1)
    else:
        dist.recv(torch.zeros(4), src=0)


def read_too_early() -> None:
    """An irecv has returned, the message has not arrived."""
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        request = dist.irecv(x, src=0)
        x.sum()
        request.wait()


def written_too_early() -> None:
    """An isend has returned, the message has not left."""
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        request = dist.isend(x, dst=1)
        x += 1
        request.wait()
    else:
        dist.recv(x, src=0)


def a_group_that_only_its_founder_knows() -> None:
    """Every rank must call new_group, in the same order, members or not."""
    if dist.get_rank() == 0:
        dist.new_group([0, 1])


def one_rank_raises() -> None:
    """Only one rank knows why the other one waits."""
    x = torch.zeros(4)
    if dist.get_rank() == 1:
        raise ValueError("this batch has no tokens")
    dist.recv(x, src=1)


MISTAKES: tuple[Callable[[], None], ...] = (
    both_receive_first,
    both_send_first,
    no_rank_receives,
    a_rank_that_is_not_there,
    different_sizes,
    different_dtypes,
    different_tags,
    never_waited_for,
    read_too_early,
    written_too_early,
    a_group_that_only_its_founder_knows,
    one_rank_raises,
)

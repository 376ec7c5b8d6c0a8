"""What every check does first, done once by each new rank while no check waits for it.

A new rank shares its memory with the process that it was forked from, and copies a page when it first touches it
(Python counts references in the objects themselves, so to look at an object is to touch it). A first call copies some
three thousand pages, in about 10 ms of each rank; the next one takes no tenth of that. So a rank warms up.
"""

import torch

from . import driver
from .drives import plain

_SOURCE = '''
import torch
import torch.distributed as dist


def exchange(x, group):
    """A message around the ring, and a sum."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(x)
    pair = [(dist.isend, x, (rank + 1) % n), (dist.irecv, received, (rank - 1) % n)]
    for request in dist.batch_isend_irecv([dist.P2POp(*each, group) for each in pair]) if n > 1 else []:
        request.wait()
    dist.all_reduce(x, group=group)
    return received
'''


def warm_up() -> None:
    """Run a small text as a check does. Every rank of a cluster must."""
    job = driver.Job(
        source=_SOURCE,
        filename="warm_up.py",
        entry="exchange",
        drive=plain,
        wants_group=True,
        meters=("peak",),
        new=True,
        members=(None,),
        given={},
    )
    driver.run(job, [{"x": torch.ones(8)}])

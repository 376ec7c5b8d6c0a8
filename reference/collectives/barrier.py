"""Barrier: no rank continues before all ranks have come.

| algorithm     | steps        | messages sent by a rank | good for |
|---------------|--------------|-------------------------|----------|
| dissemination | ceil(log2 n) | ceil(log2 n), of 1 byte | any n    |
"""

import torch
from torch.distributed import ProcessGroup

from .compat import device_of
from .exchange import exchange


def dissemination(group: ProcessGroup) -> None:
    """Return when every rank of `group` has called this: after step k one has heard from 2^k ranks to the left.

    Args:
        group: n ranks. Any n.

    Hensgen, Finkel & Manber 1988, "Two algorithms for barrier synchronization".
    """
    rank, n = group.rank(), group.size()
    here, heard = torch.zeros(2, 1, dtype=torch.uint8, device=device_of(group))
    distance = 1
    while distance < n:
        exchange(here, (rank + distance) % n, heard, (rank - distance) % n, group)
        distance *= 2
    heard.item()  # on a GPU, calls only queue: this waits for them

"""data_parallel.shard_batch: Shard a batch.

rankwise check data_parallel.shard_batch
rankwise hint data_parallel.shard_batch

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def share(batch: Tensor, group: ProcessGroup) -> Tensor:
    """Shard a batch.

    All ranks have read the same batch. Each works on its own rows of it: rank r
    of n on the r-th of n consecutive parts. Together they must work on every
    row once, also where n does not divide the number of rows: then the first
    ranks get one row more than the others. With fewer rows than ranks, some get
    none.

    Args:
        batch: [B, ...], the same on every rank.
        group: n ranks. Any n.

    Returns: this rank's rows, [about B / n, ...]. No rank needs to ask another.

    Budget: no memory. What you return is a view of `batch`.
    """
    raise NotImplementedError("not solved yet")

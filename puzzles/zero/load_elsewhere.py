"""zero.load_elsewhere: Load at another world size.

rankwise check zero.load_elsewhere
rankwise hint zero.load_elsewhere

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def load(
    read: Callable[[int, int, int], Tensor],
    saved_by: int,
    length: int,
    dtype: torch.dtype,
    group: ProcessGroup,
) -> Tensor:
    """Load at another world size.

    Yesterday the job ran on `saved_by` ranks. Each saved its shard, an n-th of
    the flat tensor, rounded up, so that the last files may end in padding, or
    be nothing else. Today it runs on n ranks, and the cuts are elsewhere. Let
    every rank read what it needs, and nothing else: the whole tensor may be
    larger than its memory.

    Args:
        read: `read(rank, begin, end)` gives elements [begin, end) of what
            `rank` saved yesterday.
        saved_by: how many ranks saved.
        length: elements of the tensor, without padding.
        dtype: of the tensor.
        group: the n ranks of today. Any n.

    Returns: this rank's shard, ceil(length / n) elements, with zeros where the
    tensor has ended.

    Budget: a rank reads each of its elements once, and no others; of each file
    at most once. Memory for two shards. No messages.
    """
    raise NotImplementedError("not solved yet")

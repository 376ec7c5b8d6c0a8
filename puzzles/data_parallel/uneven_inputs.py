"""data_parallel.uneven_inputs: Join when the data runs out.

rankwise check data_parallel.uneven_inputs
rankwise hint data_parallel.uneven_inputs

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.collectives.compat import device_of


def joined(
    batches: Iterable[Any],
    group: ProcessGroup,
    tokens_of: Callable[[Any], int] = len,
) -> Iterator[tuple[Any | None, int]]:
    """Join when the data runs out.

    Ranks have different numbers of batches, and none of them knows how many the
    others have. A rank that simply stops when it has none leaves the others
    waiting in the next all-reduce, forever. It has to continue, with zeros,
    until no rank has any.

    Yield, step by step, this rank's next batch, or None once it has no more;
    and with it the number of samples that all ranks have in this step. The loop
    that you serve does this with it, on every rank:

        for batch, samples in joined(batches, group, tokens_of):
            total = torch.zeros(width) if batch is None else batch.sum(0)
            dist.all_reduce(total, group=group)
            mean = total / max(samples, 1)

    Args:
        batches: this rank's; tensors [B, width]. It can be gone through once. B
            may be 0, and some rows are padding: zeros, which are no samples.
        group: n ranks. Any n.
        tokens_of: how many samples a batch has.

    Yields: (batch or None, samples of all ranks in this step), equally often on
    every rank: as often as the rank with the most batches has one.

    Budget: one all-reduce of yours for each step, and one more at the end.
    """
    raise NotImplementedError("not solved yet")

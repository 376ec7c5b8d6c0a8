"""decentralized.trimmed_mean: The trimmed mean among liars.

rankwise check decentralized.trimmed_mean
rankwise hint decentralized.trimmed_mean

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def trimmed_mean(gradient: Tensor, liars: int, group: ProcessGroup) -> Tensor:
    """The trimmed mean among liars.

    Some ranks may say anything instead of their gradients: by a bug, a broken
    memory, or on purpose. A single one moves a mean as far as it likes. Leave
    out, for each number by itself, the `liars` largest and the `liars` smallest
    of what the n ranks say, and take the mean of the rest. Honest ranks are
    left out, too; that is the price.

    To sort, all n numbers of a place must be in one place, but not those of all
    places on every rank. Send as few bytes as an all-reduce does.

    `dist.all_to_all_single(out, x, group=group)` gives the j-th n-th of `x` to
    rank j, and puts what comes from rank i into the i-th n-th of `out`.

    Args:
        gradient: [N] in float64, as this rank says. n divides N. Leave it as it
            is.
        liars: f, less than n / 2.
        group: n ranks. Any n.

    Returns: [N], the same on every rank.

    Budget: 2(n-1)/n · N numbers sent by a rank.
    """
    raise NotImplementedError("not solved yet")

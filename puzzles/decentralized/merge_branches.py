"""decentralized.merge_branches: Merge branches into experts.

rankwise check decentralized.merge_branches
rankwise hint decentralized.merge_branches

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def merge(feed_forward: Tensor, rest: Tensor, group: ProcessGroup) -> Tensor:
    """Merge branches into experts.

    n ranks have trained copies of one model, each on another part of the text,
    without a message in all that time. Branch-Train-MiX (Sukhbaatar et al.
    2024) makes one model of them: the feed-forward of each branch becomes an
    expert, so what a branch has learned of its part stays; of all other weights
    there is one copy, the mean of all. A router, trained afterwards, learns
    which expert is for which token.

    Args:
        feed_forward: [F] in float64, of this rank's branch. Leave it as it is.
        rest: [R], all other weights of the branch. Becomes the mean of all
            branches, in place.
        group: n ranks, a branch each. Any n.

    Returns: [n, F], a new tensor, the same on every rank: the experts, that of
    group rank 0 first.

    Budget: an all-reduce of R numbers and an all-gather of F from each rank.
    """
    raise NotImplementedError("not solved yet")

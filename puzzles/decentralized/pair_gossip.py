"""decentralized.pair_gossip: Gossip in pairs.

rankwise check decentralized.pair_gossip
rankwise hint decentralized.pair_gossip

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gossip(x: Tensor, partners: Sequence[int], group: ProcessGroup) -> None:
    """Gossip in pairs.

    No rank ever asks all others. In each round the ranks are in pairs, other
    ones each time, and the two of a pair replace what they have by the mean of
    both. The mean of all stays as it is, and after some rounds all ranks are
    near it.

    Args:
        x: [N] in float64, of one length on all ranks. Updated in place.
        partners: this rank's partner of each round, a group rank; your
            partner's partner is you. A rank that is left over is its own
            partner, and waits for no other.
        group: n ranks. Any n.

    Budget: one step for each round, in which a rank sends its x once.
    """
    raise NotImplementedError("not solved yet")

"""expert_parallel.combine: What experts made, back to its tokens.

rankwise check expert_parallel.combine
rankwise hint expert_parallel.combine

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.expert_parallel.answers.exchange import exchange_rows


def combine(
    made: Tensor,
    counts: Tensor,
    chosen: Tensor,
    weights: Tensor,
    group: ProcessGroup,
) -> Tensor:
    """What experts made, back to its tokens.

    The experts of this rank have computed the rows that came to them. What they
    made goes back to where each row came from, and there a token adds up what
    its k experts made of it, weighed.

    All that was done on the way there is undone on the way back, in the
    opposite order. There, each rank sorted its choices by expert, the rows
    travelled, and those that arrived rank by rank were regrouped: all rows of
    this rank's first expert, from all ranks in their order; then all rows of
    the second one, ... So lies what the experts have made, in `made`.

    Given is `exchange_rows(x, sent, received, group)`: the first sent[0] rows
    of `x` go to rank 0, the next sent[1] to rank 1; the result has received[0]
    rows of rank 0 first. Both are lists of ints. Autograd goes back through it:
    gradients travel the other way. That is a call of all ranks, too, so each
    rank must go back through it.

    Args:
        made: [N, D], what this rank's experts made. N may be 0.
        counts: [n, E/n] of int64, how many rows came from each rank for each
            expert of this rank. N is their sum.
        chosen: [T, k] of int64, experts of this rank's tokens, none of them
            twice. T may be 0. Rank r has the experts from r · E/n to (r+1) ·
            E/n - 1.
        weights: [T, k], of what they make.
        group: n ranks. Any n.

    Returns: [T, D], with gradients for made and weights.

    Budget: one exchange there and one back, and in it only rows that leave
    their rank, each once.
    """
    raise NotImplementedError("not solved yet")

"""expert_parallel.dispatch: Rows to the ranks of their experts.

rankwise check expert_parallel.dispatch
rankwise hint expert_parallel.dispatch

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


def dispatch(
    x: Tensor, chosen: Tensor, counts: Tensor, group: ProcessGroup
) -> Tensor:
    """Rows to the ranks of their experts.

    Rank r has the experts from r · E/n to (r+1) · E/n - 1. Send each token to
    the ranks of its k experts: a row for each choice. How many rows come has
    been exchanged before: `counts`.

    What arrives lies rank by rank: first the rows of rank 0, and within these
    first those for this rank's first expert, if rank 0 has sent them so. But
    experts compute on one block of rows each. So what has arrived must be
    regrouped: all rows of the first expert, from all ranks in their order, and
    those of a rank in the order of its tokens; then all rows of the second one,
    ...

    Given is `exchange_rows(x, sent, received, group)`: the first sent[0] rows
    of `x` go to rank 0, the next sent[1] to rank 1; the result has received[0]
    rows of rank 0 first. Both are lists of ints. Autograd goes back through it:
    gradients travel the other way. That is a call of all ranks, too, so each
    rank must go back through it.

    Args:
        x: [T, D], tokens of this rank. T may be 0, and differ from rank to
            rank.
        chosen: [T, k] of int64, experts of each token, none of them twice.
        counts: [n, E/n] of int64, how many rows come from each rank for each
            expert of this rank.
        group: n ranks. Any n.

    Returns: [N, D], the rows that this rank's experts compute, with gradients
    for x.

    Budget: one exchange there and one back, and in it only rows that leave
    their rank, each choice once.
    """
    raise NotImplementedError("not solved yet")

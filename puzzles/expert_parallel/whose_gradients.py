"""expert_parallel.whose_gradients:
Whose gradients are summed, and divided by what.

rankwise check expert_parallel.whose_gradients
rankwise hint expert_parallel.whose_gradients

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def sum_gradients(
    router: Tensor,
    experts: Tensor,
    ep: ProcessGroup,
    edp: ProcessGroup,
    group: ProcessGroup,
) -> None:
    """Whose gradients are summed, and divided by what.

    n ranks read different tokens, as many each. Each has a replica of the
    router. Experts are shared out over ep ranks that are neighbours; the next
    ep ranks have replicas of all these experts again, and so on: an expert is
    on n / ep ranks. In forward a token goes to the rank of its own ep
    neighbours that has its expert.

        ranks 0 1 2 3, ep = 2      rank 0: experts 0, 1     rank 1: experts 2, 3
                                   rank 2: experts 0, 1     rank 3: experts 2, 3

    The loss of a step is the mean over all tokens of all ranks. In backward
    each rank begins with the mean over its own tokens, and gradients travel
    back the way that tokens came. What has a rank found then for its router,
    and what for its experts? Which ranks found the rest of each, and by what is
    each sum to be divided?

    Args:
        router: gradient of the router, as backward left it on this rank. To be
            made that of the loss of the step, in place.
        experts: gradients of this rank's experts, likewise.
        ep: the group of this rank and its neighbours that have all experts
            together.
        edp: the group of the ranks that have the same experts as this one.
        group: all n ranks. Any n.

    Budget: two all-reduces, and no gradient goes to a rank that has no use for
    it.
    """
    raise NotImplementedError("not solved yet")

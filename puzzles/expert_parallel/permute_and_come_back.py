"""expert_parallel.permute_and_come_back:
Rows in the order of experts, and back.

rankwise check expert_parallel.permute_and_come_back
rankwise hint expert_parallel.permute_and_come_back

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def permute_and_come_back(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    compute: Callable[[Tensor, list[int]], Tensor],
) -> Tensor:
    """Rows in the order of experts, and back.

    Experts compute with matrices. One product for all rows of an expert is
    fast, one for each token is not. So rows are put in the order of their
    experts, computed, and put back: each token adds up what its k experts have
    made of it, weighed.

    `compute(rows, counts)` is all experts: the first counts[0] rows are for
    expert 0, the next counts[1] for expert 1, and it returns as many rows, in
    the same order. Call it once, also where there is nothing to compute.
    Autograd goes through it. Its rows, [N, D], are those of the first expert
    first, and in there those of the first token; an expert may have none.

    A choice of -1 was dropped, because its expert had no room: it is no row,
    and adds nothing. A token all of whose choices are dropped gets zeros.

    Args:
        x: [T, D]; there may be no tokens.
        chosen: [T, k] of int64, below E; no token has an expert twice.
        weights: [T, k], of what the experts make.
        experts: E.
        compute: see above.

    Returns: [T, D], with gradients for x and weights.

    Budget: 20 lines and 5 for each expert, however many tokens there are.
    """
    raise NotImplementedError("not solved yet")

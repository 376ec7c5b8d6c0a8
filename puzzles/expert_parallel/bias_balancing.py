"""expert_parallel.bias_balancing: A bias that keeps experts busy.

rankwise check expert_parallel.bias_balancing
rankwise hint expert_parallel.bias_balancing

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


def route_a_step(
    scores: Sequence[Tensor],
    bias: Tensor,
    k: int,
    rate: float,
    group: ProcessGroup,
) -> list[tuple[Tensor, Tensor]]:
    """A bias that keeps experts busy.

    A loss that evens out how busy experts are has a gradient, which disturbs
    the one that is wanted. A bias has none. Each expert has one, which is added
    to its scores to choose experts with. After each step, that of an expert
    which got more choices than the mean falls by a constant, that of one which
    got fewer rises by it, and that of one which got just the mean stays
    (DeepSeek-V3).

    The order matters. A step has several micro-batches, and many ranks with
    other tokens in each. All tokens of a step choose with the bias that the
    step before has left. Then it moves, once, by the choices of all
    micro-batches of all ranks, for it must stay the same on every rank. Last,
    its mean is taken out: it changes no choice, and nothing else would keep it
    from drifting.

    What an expert makes of a token is weighed by its score, without the bias.

    Args:
        scores: a list with a tensor [T, E] for each micro-batch, above 0, of
            this rank's tokens. T may differ, and may be 0. Gradients flow back
            through the weights.
        bias: [E], the same on every rank. To be moved in place, as it was
            described.
        k: experts of a token, those with the largest sum of score and bias.
        rate: the constant.
        group: n ranks. Any n.

    Returns: a list with a pair for each micro-batch: the experts of each token,
    [T, k] of int64, the best first; and their weights, [T, k]: scores divided
    by their sum over the token's experts.

    Budget: one all-reduce of E numbers.
    """
    raise NotImplementedError("not solved yet")

"""expert_parallel.auxiliary_loss: A loss that keeps experts busy.

rankwise check expert_parallel.auxiliary_loss
rankwise hint expert_parallel.auxiliary_loss

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def auxiliary_loss(
    scores: Tensor, chosen: Tensor, group: ProcessGroup
) -> Tensor:
    """A loss that keeps experts busy.

    A router that likes an expert sends it more tokens, so it learns more, and
    is liked more. Against that there is a loss, beside that of the model:

        E · sum over experts of share(e) · mean_score(e)

    share(e) is how many of all choices expert e got, divided by the number of
    all choices; mean_score(e) is the mean of the tokens' scores for it. Both
    are 1/E if all experts are equally busy, and then the loss is 1. The share
    is a count and has no gradient; the scores have one.

    Both are meant over *all* tokens of all ranks. The mean of each rank's own
    loss is not that: a rank that reads code and one that reads poems may well
    use other experts. Over both of them all experts are busy; each rank by
    itself would be punished, until no expert knows what code is. And the result
    would depend on how many ranks there are.

    Return this rank's part: the terms of its own tokens, such that the parts of
    all ranks add up to the loss, and the gradient of each score is that of one
    process. Ranks have different numbers of tokens. One that has none takes
    part all the same; its part is 0, with a history, as that of the others.
    Where no rank has any, the loss is 0.

    Counts are whole numbers, and torch divides these in float32: give them the
    dtype of the scores before.

    Args:
        scores: [T, E], which add up to one for each token. T may be 0.
            Gradients flow back through them.
        chosen: [T, k] of int64, experts of each token, none of them twice.
        group: n ranks. Any n.

    Returns: a scalar, this rank's part. (Gradients are summed over ranks later,
    and never divided.)

    Budget: one all-reduce of E numbers, or of E + 1.
    """
    raise NotImplementedError("not solved yet")

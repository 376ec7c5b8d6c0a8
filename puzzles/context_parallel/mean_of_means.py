"""context_parallel.mean_of_means: A mean of means.

rankwise check context_parallel.mean_of_means
rankwise hint context_parallel.mean_of_means

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def mean_over_ranks(
    logits: Tensor, targets: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """A mean of means.

    A long conversation lies on n ranks, and only its answers count: the targets
    of the prompt are -100. Each rank takes the mean over its own tokens, and
    the mean of these is what goes backward and into the log. One process says
    that the loss on held-out text is 3.31. Four ranks say 0.41. And from time
    to time the loss is NaN.

    Both have one cause. Mend it: each token that counts must count the same, on
    whichever rank it is. A rank may hold none that counts; it takes part all
    the same, and its part is 0, with a gradient of zeros. Where no rank holds
    any, the loss is 0, too.

    Args:
        logits: [T, V], of this rank's tokens. Gradients flow back through them.
        targets: [T], the wanted token; -100 where a token does not count.
        group: n ranks. Any n.

    Returns: two scalars. First this rank's part of the loss, with a gradient:
    the parts of all ranks add up to the mean over all tokens of all ranks that
    count. (Gradients are summed over ranks later, and never divided.) Then the
    loss itself, the same on every rank, for the log.

    Budget: one all-reduce of two numbers.
    """
    mean = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)
    part = mean / dist.get_world_size(group)
    loss = part.detach().clone()
    dist.all_reduce(loss, group=group)
    return part, loss

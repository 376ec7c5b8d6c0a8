"""data_parallel.token_weighted_loss: Every token counts the same.

rankwise check data_parallel.token_weighted_loss
rankwise hint data_parallel.token_weighted_loss

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def weighted_loss(losses: Tensor, group: ProcessGroup) -> Tensor:
    """Every token counts the same.

    The loss of a step is the mean over all tokens of all ranks. But texts have
    different lengths, so ranks have different numbers of tokens. A mean of the
    ranks' means would give a token more weight where there are few.

    Return this rank's part of the loss, such that the parts of all ranks add up
    to the mean over all tokens, and their gradients to its gradient. Gradients
    are summed over ranks later, and never divided.

    Args:
        losses: the loss of each of this rank's tokens, [T]. T differs from rank
            to rank, and may be 0; not on all ranks. Gradients flow back through
            it.
        group: n ranks. Any n.

    Returns: a scalar.

    Budget: one all-reduce of one number.
    """
    raise NotImplementedError("not solved yet")

"""data_parallel.distributed_accuracy: How accurate are all of us together?

rankwise check data_parallel.distributed_accuracy
rankwise hint data_parallel.distributed_accuracy

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def accuracy(logits: Tensor, targets: Tensor, group: ProcessGroup) -> float:
    """How accurate are all of us together?

    Every rank has tested the model on its own tokens. For which share of the
    tokens of all ranks is the most likely one the right one? Tokens whose
    target is -100, such as padding, are not asked.

    Args:
        logits: this rank's, [T, classes]. T differs from rank to rank, and may
            be 0; not on all ranks.
        targets: [T], of int64.
        group: n ranks. Any n.

    Returns: a number (a float), the same on every rank.

    Budget: one all-reduce of two numbers.
    """
    raise NotImplementedError("not solved yet")

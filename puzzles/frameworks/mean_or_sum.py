"""frameworks.mean_or_sum: Mean or sum.

rankwise check frameworks.mean_or_sum
rankwise hint frameworks.mean_or_sum

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def factors(
    counts: Sequence[int], averages: bool, divides: bool, group: ProcessGroup
) -> list[float]:
    """Mean or sum.

    A loss of the whole batch is the mean over all tokens that count: those of
    all ranks and all micro-batches. Windows are padded, so a micro-batch has
    some hundred tokens that count, or few, or none. A program computes the mean
    loss of each of its K micro-batches (0 for one without tokens), and hands
    its gradient to a framework.

    Frameworks differ in what they do with it. DDP and `fully_shard` average
    gradients over ranks; Megatron can sum them. DeepSpeed's engine and
    Accelerate divide each loss by K, as accumulation asks for where all
    micro-batches have as many tokens; a plain loop does not.

    By what must the program multiply the mean loss of each micro-batch?

    Args:
        counts: tokens that count, in each of K micro-batches of this rank. On
            all ranks together there are some.
        averages: whether the framework averages gradients over the ranks of the
            group, or sums them.
        divides: whether it divides each loss by K.
        group: n ranks. Any n. All have the same K.

    Returns: a list of K factors.

    Budget: one all-reduce of one number.
    """
    raise NotImplementedError("not solved yet")

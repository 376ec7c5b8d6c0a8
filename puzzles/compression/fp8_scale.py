"""compression.fp8_scale: One scale for a matrix in shards.

rankwise check compression.fp8_scale
rankwise hint compression.fp8_scale

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def fp8_scales(shards: list[Tensor], group: ProcessGroup) -> list[Tensor]:
    """One scale for a matrix in shards.

    FSDP can gather the weights of fp8 layers in fp8, a byte for each element,
    if every rank divides its shard of a matrix by the same scale: codes of
    different scales don't fit together. The largest number of fp8 (E4M3) is
    448. A scale is the smallest power of two with which no element of the whole
    matrix, divided by it, is larger than that; so that division rounds nothing.
    Of a matrix of zeros it is 1.

    Which ranks must know of each other? Those that have parts of the matrix:
    the group. Ranks that hold replicas have the same numbers, and find the same
    scale without a message.

    Args:
        shards: a list; of each matrix what this rank has of it, flat. It may be
            nothing. Leave them as they are.
        group: the n ranks that share the matrices. Any n.

    Returns: a list of the scales, a scalar tensor of the shards' dtype for each
    matrix, the same on every rank.

    Budget: one message for all matrices, with one number for each.
    """
    raise NotImplementedError("not solved yet")

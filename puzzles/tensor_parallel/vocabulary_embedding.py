"""tensor_parallel.vocabulary_embedding: An embedding, split by vocabulary.

rankwise check tensor_parallel.vocabulary_embedding
rankwise hint tensor_parallel.vocabulary_embedding

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def look_up(
    tokens: Tensor, table: Tensor, upstream: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """An embedding, split by vocabulary.

    The embedding of Llama 3 has 128,256 rows. Share them: of V rows rank r has
    the r-th n-th, and every rank needs what the *whole* table gives for all
    tokens. Of most tokens it does not have the row.

    Look up what this rank has, let the others add what they have, and find the
    gradient of this rank's rows. A row gets the upstream gradients of all
    places in the text where its token stands.

    Args:
        tokens: [T] of integers from 0 to V - 1, the same on every rank. Some
            come more than once.
        table: [V / n, D], this rank's rows.
        upstream: [T, D], gradient of the loss with respect to what is found,
            the same on every rank.
        group: n ranks. Any n.

    Returns: two tensors: what is found, [T, D], the same on every rank; the
    gradient of this rank's rows, [V / n, D].

    Budget: one all-reduce of T D numbers. Memory for a few tensors of T D
    numbers and for the gradient, but for nothing of T V / n numbers.
    """
    raise NotImplementedError("not solved yet")

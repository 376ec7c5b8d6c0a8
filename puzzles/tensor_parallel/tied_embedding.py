"""tensor_parallel.tied_embedding: The gradient of a tied table.

rankwise check tensor_parallel.tied_embedding
rankwise hint tensor_parallel.tied_embedding

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def tied_gradient(
    tokens: Tensor,
    table: Tensor,
    y: Tensor,
    upstream: Tensor,
    backward: Callable[[Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """The gradient of a tied table.

    Many models have one table for both ends: row v is the embedding of token v,
    and the weight of its logit.

        h = table[tokens] -> layers -> y        logits = y tableᵀ

    So its gradient has two parts, one from each end. The table is split by
    vocabulary among n ranks; this rank has some rows, so some of the logits,
    and it was told the gradient u of those. The layers between are the same on
    every rank, and see all tokens: their backward must be given the whole
    gradient of y.

        gradient of the table as a head       uᵀ y
        gradient of y                         u table
        gradient of the table as embedding
        each token's row gets what `backward` gives for its place

    Which of these need the other ranks?

    Args:
        tokens: [T] of integers from 0 to V - 1, the same on every rank. Some
            come more than once.
        table: [V / n, D], this rank's rows.
        y: [T, D], what the layers have made of the embeddings, the same on
            every rank.
        upstream: [T, V / n], gradient of the loss with respect to this rank's
            logits.
        backward: `backward(gradient)` goes through the layers between, once:
            from the whole gradient of y, [T, D], to that of the embeddings, [T,
            D].
        group: n ranks. Any n.

    Returns: the gradient of this rank's rows, [V / n, D].

    Budget: one all-reduce of T D numbers. Nothing as large as the table
    travels.
    """
    raise NotImplementedError("not solved yet")

"""tensor_parallel.dropout: Dropout inside and outside the split.

rankwise check tensor_parallel.dropout
rankwise hint tensor_parallel.dropout

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.models.dropout import dropped


def drop_and_sum(
    hidden: Tensor,
    weight: Tensor,
    upstream: Tensor,
    probability: float,
    seeds: Tensor,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """Dropout inside and outside the split.

    A row-parallel layer with two dropouts, one before it, where each rank has
    other features, and one after it, where all have the same:

        output = drop(sum over ranks of drop(hidden) weightᵀ)

    Dropout sets an element to zero with probability p, and multiplies the
    others with 1 / (1 - p). Which elements these are must not depend on the
    number of ranks: the layer must give what one process gives. A generator
    with one seed on all ranks drops the first feature of every rank together;
    with a seed for each rank, the outputs differ from rank to rank.

    So no number is drawn here. Given is
    `dropped(probability, seeds, site, first, features)`: True for what one
    process drops of the features [first, first + features), a bool of [T,
    features]. It follows from the seed of the token, from the number of the
    feature in the whole, and from `site`: 0 for the dropout inside, 1 for the
    one outside.

    Args:
        hidden: [T, F / n]: rank r has the r-th n-th of the features.
        weight: [D, F / n], this rank's columns.
        upstream: [T, D], gradient of the loss with respect to the output, the
            same on every rank.
        probability: p.
        seeds: [T] of integers, one for each token, the same on every rank.
        group: n ranks. Any n.

    Returns: three tensors: the output, [T, D], the same on every rank; the
    gradients of this rank's `hidden` and of its `weight`.

    Budget: one all-reduce of T D numbers, and nothing that tells of masks. No
    masks of others' features.
    """
    raise NotImplementedError("not solved yet")

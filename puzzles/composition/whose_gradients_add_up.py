"""composition.whose_gradients_add_up: Whose gradients add up.

rankwise check composition.whose_gradients_add_up
rankwise hint composition.whose_gradients_add_up

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from reference.composition.plain import coordinates_of_a_rank, groups_along


def whose_gradients_add_up(
    sizes: Mapping[str, int], does: Mapping[str, str]
) -> list[tuple[int, ...]]:
    """Whose gradients add up.

    Five axes, and for one parameter a word for each that says what the axis
    does to it. From these words it follows over which ranks its gradient is
    summed; a group that lacks an axis, or has one too many, trains something
    else and says nothing.

        "replicated"   ranks along the axis hold the same elements
        "split"        they hold different ones
        "partial"      they hold the same ones, and each finds a part of their
                       gradient

    Along dp_replicate, dp_shard and cp, ranks read different tokens. So each
    finds a part of the gradient, whatever the word: where it is "split" (FSDP),
    each rank gathers all elements to compute with, finds a part of the gradient
    of each, and cuts the sum.

    Along tp, ranks compute with the same tokens. "split": a matrix, and each
    rank finds the whole gradient of its own rows. "replicated": a norm, whose
    gradient all of them find alike. "partial": a norm under sequence
    parallelism, or keys and values that several ranks share.

    Along pp, "split" is usual: each stage has layers of its own. "partial" is a
    table that is embedding and head: the first and the last stage have it, and
    each finds a part. The stages between have nothing of it.

    Args:
        sizes: ranks along each axis, by name: "pp", "dp_replicate", "dp_shard",
            "cp", "tp", the outermost first.
        does: what each axis does to the parameter, by the same names.

    You have `groups_along(axes, sizes)` and
    `coordinates_of_a_rank(rank, sizes)`, both with axes counted from 0 and a
    tuple of sizes.

    Returns: for each rank, in order, a tuple of the ranks whose gradients add
    up to what it needs, in order, itself included; () for a rank that has
    nothing of the parameter.

    Budget: one look at each rank.
    """
    raise NotImplementedError("not solved yet")

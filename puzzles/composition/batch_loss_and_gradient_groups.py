"""composition.batch_loss_and_gradient_groups:
Three groups: windows, losses, gradients.

rankwise check composition.batch_loss_and_gradient_groups
rankwise hint composition.batch_loss_and_gradient_groups

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from reference.composition.plain import coordinates_of_a_rank, rank_at


def batch_loss_and_gradient_groups(
    rank: int, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Three groups: windows, losses, gradients.

    Three groups of a training loop. They differ by an axis each, and are easily
    confused:

        windows     ranks that read different windows: a sampler deals them out
                    by the place in this group
        losses      ranks whose parts of the loss add up to that of the batch:
                    those with other tokens, on any stage. A stage that is not
                    the last adds 0, so that all stages come to know the loss
        gradients   ranks whose gradients add up, of a matrix of this stage that
                    is not split along the data axes: those with other tokens

    What the axes are for: along dp_replicate and dp_shard, ranks read other
    windows; along cp they have other tokens of the same windows; along tp they
    share the matrices of a layer, and compute with the same tokens; along pp
    they have other layers.

    Mistakes here are silent. A gradient that is summed over dp without cp was a
    group of one rank in VeOmni (PR1115): no sum at all, and training went on.
    In Megatron-LM (#779) a loss was averaged over the wrong ranks.

    Args:
        rank: of all of them.
        sizes: ranks along each axis of the mesh, the outermost first. The last
            counts fastest. The axes may be in any order, and one that is not
            there has 1 rank.

    You have `coordinates_of_a_rank(rank, sizes)` and its inverse,
    `rank_at(coordinates, sizes)`, with a tuple of sizes.

    Returns: a tuple of three tuples: the ranks of these groups that `rank` is
    in, in order, itself included.

    Budget: no look at all ranks of the mesh.
    """
    raise NotImplementedError("not solved yet")

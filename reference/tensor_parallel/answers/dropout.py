"""Dropout in a row-parallel layer: inside the split each rank drops its own features, outside all drop the same.

    z = drop(sum over ranks of drop(h_i) B_iᵀ)          h_i: features of rank i          z: the same on every rank

What is dropped must not depend on the number of ranks. Masks from a rank's own generator do: with one seed for all,
every rank drops the first, the fourth and the ninth of *its* features; with a seed for each, replicas drop different
elements of z and are replicas no more. Here a mask follows from the token and from the feature's number in the whole
(`reference.models.dropout`), so ranks need neither seeds of their own nor a message.

Megatron-LM keeps two random states for this (Shoeybi et al. 2019, appendix B.2): one that differs between the ranks of
the tensor axis for what is inside, one that they share for what is outside. Its masks change with the number of ranks.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.models.dropout import dropped

INSIDE = 0  # which dropout of a layer: each has numbers of its own
OUTSIDE = 1


def drop_and_sum(
    hidden: Tensor, weight: Tensor, upstream: Tensor, probability: float, seeds: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """A row-parallel layer with a dropout before it and one after it, forward and backward.

    Args:
        hidden: [N, F / t], this rank's features.
        weight: [D, F / t], this rank's columns.
        upstream: [N, D], gradient of the loss with respect to the output, the same on every rank.
        probability: p of an element to be dropped, 0 <= p < 1; the others are multiplied by 1 / (1 - p).
        seeds: [N] of int64, of each token, the same on every rank.
        group: t ranks.

    Returns:
        The output [N, D], the same on every rank; the gradients of this rank's `hidden` and of its `weight`.
    """
    (features, width), scale = (hidden.shape[1], weight.shape[0]), 1 / (1 - probability)
    inside = dropped(probability, seeds, INSIDE, dist.get_rank(group) * features, features)
    outside = dropped(probability, seeds, OUTSIDE, 0, width)
    kept = (hidden * scale).masked_fill_(inside, 0.0)
    total = kept @ weight.T
    dist.all_reduce(total, group=group)
    output = (total * scale).masked_fill_(outside, 0.0)

    of_total = (upstream * scale).masked_fill_(outside, 0.0)
    of_hidden = (of_total @ weight * scale).masked_fill_(inside, 0.0)
    return output, of_hidden, of_total.T @ kept

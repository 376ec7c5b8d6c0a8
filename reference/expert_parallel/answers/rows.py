"""Rows in the order of their experts, and back: what a mixture of experts does on one rank.

A choice of a token is a row. Sorted by experts, stably, rows lie in groups that are one matrix product each; the order
of the sort says to which choice each row belongs. No capacity and no padding: the groups may have any sizes.

Gale et al. 2022, "MegaBlocks", sec. 5.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def permute_and_come_back(
    x: Tensor, chosen: Tensor, weights: Tensor, experts: int, compute: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """What its experts make of each token, weighed and added.

    Args:
        x: [T, D].
        chosen: [T, k] of int64, the experts of each token; -1 for a choice that is dropped.
        weights: [T, k], of what they make.
        experts: E.
        compute: all experts: from rows [N, D] in the order of experts, and how many each has, to [N, D].

    Returns:
        [T, D]; zeros for a token all of whose choices are dropped.
    """
    k, flat = chosen.shape[1], chosen.flatten()
    order = flat.argsort(stable=True)[int((flat < 0).sum()) :]  # of choices: those that are dropped come first
    counts = torch.bincount(flat[order], minlength=experts).tolist()
    made = compute(x[order // k], counts)
    of_choices = made.new_zeros(len(flat), made.shape[1]).index_copy(0, order, made)
    return (of_choices.view(-1, k, made.shape[1]) * weights[..., None]).sum(1)

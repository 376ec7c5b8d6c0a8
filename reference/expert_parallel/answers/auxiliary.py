"""The loss that keeps experts busy, of tokens that several ranks hold.

It is a product of two means: the share of all choices that an expert got, and its mean score. A mean of such products,
one of each rank, is another loss. Where each rank keeps other experts busy it is high, and over all ranks nothing is
uneven. So the shares are those of all ranks' choices. They have no gradient, and what remains is a sum over tokens:
each rank takes the terms of its own, and the parts of all ranks add up.

Fedus et al. 2021, "Switch transformers", sec. 2.2, equations 4 to 6; Lepikhin et al. 2020, "GShard"; on why the batch
must be the one of all ranks Qiu et al. 2025, "Demons in the detail".
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def auxiliary_loss(scores: Tensor, chosen: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's part of E · sum over experts of (share of choices) x (mean score), over the tokens of all ranks.

    Args:
        scores: [T, E], which sum to one over experts; T differs from rank to rank, and may be 0.
        chosen: [T, k] of int64, the experts of each token.
        group: n ranks.

    Returns:
        A scalar, with a gradient for the scores. The parts of all ranks add up to the loss; 0 where no rank has tokens.
    """
    experts, k = scores.shape[1], chosen.shape[1]
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    dist.all_reduce(counts, group=group)
    counts = counts.to(scores.dtype)  # torch divides whole numbers in float32
    choices = counts.sum().clamp(min=1)
    return experts * (counts / choices * scores).sum() / (choices / k)

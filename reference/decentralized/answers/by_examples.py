"""FedAvg's average: clients count by their examples, and one that has none does not count at all."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def average(weights: Tensor, examples: int, group: ProcessGroup) -> None:
    """Replace the weights of all clients by their mean, weighted by examples, in place.

    Args:
        weights: [N], what this client has learned; means nothing where it has no examples.
        examples: that it has.
        group: n ranks, a client each, of whom one at least has examples.
    """
    said = torch.cat([weights, weights.new_ones(1)])
    said = said * examples if examples else torch.zeros_like(said)
    dist.all_reduce(said, group=group)
    weights.copy_(said[:-1] / said[-1])

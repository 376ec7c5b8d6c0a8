"""Experts of a token on few nodes: the best groups of experts first, then the best experts of these.

Groups are as many experts as a node has, and a token crosses slow links once for each node that it goes to. A group is
worth what the token would get there, the sum of its best k / M experts; its single best expert, or the sum of all,
would choose other groups. Closed groups are out of the question, so they get minus infinity: with 0, experts of closed
groups beat those of open ones whose biased scores are below it.

DeepSeek-AI 2024, "DeepSeek-V3", sec. 2.1.2: 8 of 256 experts, of the best 4 of 8 nodes.
"""

import torch
from torch import Tensor


def choose_on_nodes(scores: Tensor, nodes: int, most: int, k: int) -> Tensor:
    """The experts of each token, the best first: [T, E] -> [T, k] of int64. Of equal ones, that which comes first.

    Args:
        scores: any numbers, with a bias in them.
        nodes: each with as many of the experts, in a row.
        most: M, nodes of a token.
        k: experts of a token, no more than M nodes have.
    """
    of_nodes = scores.unflatten(1, (nodes, -1))
    best = min(of_nodes.shape[-1], -(-k // most))
    worth = of_nodes.sort(descending=True).values[..., :best].sum(-1)
    closed = torch.ones_like(worth, dtype=torch.bool).scatter(1, _first_of(worth, most), False)
    return _first_of(of_nodes.masked_fill(closed[..., None], -torch.inf).flatten(1), k)


def _first_of(x: Tensor, k: int) -> Tensor:
    """Places of the k largest, in order. torch.topk leaves open which of equal ones it takes."""
    return x.sort(descending=True, stable=True).indices[:, :k]

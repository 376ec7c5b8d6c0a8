"""expert_parallel.node_limited: Experts of a token on few nodes.

rankwise check expert_parallel.node_limited
rankwise hint expert_parallel.node_limited

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def choose_on_nodes(scores: Tensor, nodes: int, most: int, k: int) -> Tensor:
    """Experts of a token on few nodes.

    Links between nodes are slow, so a token shall go to M nodes at most. Its
    experts are the best k of those that lie on the best M nodes. What is a node
    worth to a token? What it would get there: M nodes have k experts for it,
    which is k / M each; so a node is worth the sum of its best k / M scores,
    rounded up where M does not divide k, and no more than it has (DeepSeek-V3).

    Scores have a bias in them, so they may be below 0. Where nodes are worth
    the same, and where experts have equal scores, the one with the lower number
    is better.

    Args:
        scores: [T, E], of each token for each expert. T may be 0.
        nodes: each has as many experts: the first one 0, 1, ..., the next one
            those that follow.
        most: M.
        k: experts of a token; M nodes have at least k.

    Returns: [T, k] of int64, the experts of each token, the best first.

    Budget: 40 lines, however many tokens there are.
    """
    raise NotImplementedError("not solved yet")

"""expert_parallel.route_top_k: Choose the best k experts.

rankwise check expert_parallel.route_top_k
rankwise hint expert_parallel.route_top_k

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def route_top_k(
    logits: Tensor, k: int, gate: str, normalised: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Choose the best k experts.

    A router has a logit for each token and each expert. Scores are the softmax
    of a token's logits, or the sigmoid of each logit by itself. The k experts
    with the highest scores compute, and what each of them makes is added with a
    weight: its score; or, where weights are normalised, its score divided by
    the sum of those of the k. In the end all weights are multiplied by `scale`.

    Two experts may have equal scores; with logits in 16 bits they often do.
    Then the one with the lower number comes first. The answer must not depend
    on which kernel runs, for a token is routed again when activations are
    recomputed, and by other ranks. `torch.topk` promises no order.

    A choice has no gradient: it is a number of an expert. The router learns
    from the weights.

    Args:
        logits: [T, E], in float64. There may be no tokens, and logits may be
            around 1000.
        k: experts of a token, E at most.
        gate: "softmax" or "sigmoid".
        normalised: whether the weights of a token's experts add up to one,
            before they are scaled.
        scale: a float.

    Returns: the chosen experts, [T, k] of int64, the best first; and their
    weights, [T, k], with gradients for the logits.

    Budget: 25 lines, however many tokens there are.
    """
    raise NotImplementedError("not solved yet")

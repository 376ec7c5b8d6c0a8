"""context_parallel.scan_of_states: The state before each rank.

rankwise check context_parallel.scan_of_states
rankwise hint context_parallel.scan_of_states

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def state_before(
    decay: Tensor, state: Tensor, backwards: bool, group: ProcessGroup
) -> Tensor:
    """The state before each rank.

    Linear attention has no softmax. What all tokens up to t have left is one
    state, a matrix: each token decays it, adds to it and reads from it. So the
    tokens of a rank, together, do two things to whatever state they find: they
    multiply it by `decay`, and add `state`. No block of keys need travel,
    however many tokens there are.

        state before rank r + 1 = decay of rank r · state before rank r
                                  + state of rank r

    Before rank 0 there are zeros. Rank by rank that takes n - 1 steps, in which
    all other ranks wait. But two neighbours, one after the other, are again a
    decay and a state. Which? And if two can be joined, so can four: after i
    steps a rank may know what the 2^i ranks up to it come to. It needs what
    those *before* it do.

    Backward is the same scan from the other end: the gradient of a rank's state
    is made by the ranks after it. So your function is called once more in
    backward, with `backwards=True` and gradients in the place of states. Then
    the last rank has zeros, and

        result of rank r - 1 = decay of rank r · result of rank r
                               + state of rank r

    Args:
        decay: [H], of each head.
        state: [H, d, e], of each head.
        backwards: whether to scan from the last rank to the first.
        group: n ranks. Any n.

    Returns: a new tensor, [H, d, e].

    Budget: log2 n steps, rounded up, and one more, with a decay and a state
    sent in each. It is possible without the one more.
    """
    raise NotImplementedError("not solved yet")

"""decentralized.staleness: How late each update was.

rankwise check decentralized.staleness
rankwise hint decentralized.staleness

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def staleness(events: Sequence[tuple[int, bool]]) -> list[int]:
    """How late each update was.

    A parameter server writes a log: which worker has pulled the weights, and
    which has pushed a gradient, in the order in which that happened. Each push
    updates the weights. A gradient is of the weights that its worker pulled
    last, and these are old by the time it comes: its staleness is the number of
    updates that were made in between.

    Args:
        events: (worker, is_push) in order; False is a pull. Each worker has
            pulled before its first push. It may push several gradients of one
            pull: then its own earlier ones make the later ones late, too.

    Returns: the staleness of each push, in order.

    Budget: a pass over the log.
    """
    raise NotImplementedError("not solved yet")

"""composition.axis_bytes: The bytes of each axis.

rankwise check composition.axis_bytes
rankwise hint composition.axis_bytes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def axis_bytes(
    p: int,
    d: int,
    t: int,
    batch: int,
    micro_batch: int,
    layers: int,
    width: int,
    sequence: int,
) -> tuple[int, int, int]:
    """The bytes of each axis.

    A step of DP x TP x PP. What does a rank send along each axis? Take one in
    the middle of a pipeline, with a neighbour on both sides.

    pipe      of every micro-batch its activations, b s h numbers, to the next
              stage, and as many numbers of gradients to the stage before.
              Without a pipeline nothing.
    data      once a step the gradients of its weights, in an all-reduce around
              the ring: of n ranks each sends 2(n-1)/n of the tensor. A layer
              has 12 h² weights, which t ranks share.
    tensor    in each of its layers four all-reduces of b s h numbers for every
              micro-batch, two on the way there and two on the way back, around
              the ring, too.

    All numbers have 2 bytes. Embedding, head and biases are left out, and
    nothing is recomputed.

    Args:
        p, d, t: ranks on the axes pipe, data and tensor; all divide what they
            should. p is 1 or at least 3.
        batch: B, windows in a step, of all replicas together.
        micro_batch: b, windows in a micro-batch.
        layers: l, of all stages together.
        width: h.
        sequence: s, tokens in a window.

    Returns: bytes along pipe, data and tensor, three ints.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")

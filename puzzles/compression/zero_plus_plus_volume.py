"""compression.zero_plus_plus_volume: What leaves a node with ZeRO++.

rankwise check compression.zero_plus_plus_volume
rankwise hint compression.zero_plus_plus_volume

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def leaves_a_node(
    shard: int,
    nodes: int,
    ranks: int,
    block: int,
    weights: bool,
    second: bool,
    gradients: bool,
) -> int:
    """What leaves a node with ZeRO++.

    FSDP on N nodes of L ranks, n = N·L: parameters of n shards of m elements
    each, in 16 bits, are gathered before forward and before backward, gradients
    are reduce-scattered, all around a ring of n ranks, those of a node one
    after another. So what leaves a node is what its last rank sends: n-1 shards
    in each of the three passes, nearly 3 M, where M is the bytes of the model.
    ZeRO++ has three remedies:

        qwZ   parameters are gathered in 8 bits, with a scale of 4 bytes for
              each `block` of them
        hpZ   before backward they are gathered within the node, from a copy
              that forward has left there
        qgZ   gradients are summed within the node first. Then each of its L
              ranks sends each of its N-1 neighbours on the other nodes a shard,
              in 4 bits with a scale of 4 bytes for each `block`

    How many bytes leave a node in a step of one micro-batch?

    Args:
        shard: m, even; `block` divides it.
        nodes: N, at least 2.
        ranks: L, of a node.
        block: elements that share a scale.
        weights: whether qwZ is on.
        second: whether hpZ is on.
        gradients: whether qgZ is on.

    Returns: bytes, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")

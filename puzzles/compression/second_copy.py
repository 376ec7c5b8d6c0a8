"""compression.second_copy: Which copy, and how much memory (hpZ).

rankwise check compression.second_copy
rankwise hint compression.second_copy

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def second_copy(
    rank: int, ranks: int, node: int, numel: int, size: int
) -> tuple[int, int, int, int]:
    """Which copy, and how much memory (hpZ).

    FSDP on n ranks gathers all parameters twice in a step, before forward and
    before backward, and what it gathers has not changed between them. hpZ of
    ZeRO++ lets what forward has gathered stay in the node: its s ranks cut it
    into s pieces and keep one each until the optimizer changes the parameters,
    in the dtype that they compute in. Backward then gathers within the node,
    and nothing crosses to other nodes. Each rank still updates its n-th: the
    second copy is for computing alone.

    Parameters are padded to a multiple of n first, so that the n shards are
    alike. Ranks of a node follow each other: node 0 has ranks 0 to s-1.

    Args:
        rank: which.
        ranks: n, all of them.
        node: s, ranks of a node, a divisor of n.
        numel: Ψ, parameters.
        size: bytes of an element.

    Returns: (begin, end, kept, received): where this rank's piece of the second
    copy begins and ends among the padded parameters, its bytes, and the bytes
    that this rank receives when backward gathers them.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")

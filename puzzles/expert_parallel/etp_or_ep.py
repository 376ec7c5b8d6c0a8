"""expert_parallel.etp_or_ep: Experts whole, or cut.

rankwise check expert_parallel.etp_or_ep
rankwise hint expert_parallel.etp_or_ep

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def bytes_of_experts(
    tokens: int, k: int, width: int, size: int, ep: int, etp: int
) -> tuple[int, int]:
    """Experts whole, or cut.

    A layer has more experts than fit on a rank. There are two ways to share
    them out, and they may be combined.

    ep      experts stay whole, and lie on ep ranks. Each rank has other tokens.
            A row for each of a token's k choices goes to the rank that has the
            expert, and what that makes of it comes back. Choices fall evenly:
            each rank has an ep-th of each rank's choices.
    etp     etp ranks share the matrices of the same experts. Each of these
            ranks has rows of its own, those that came to it along ep. It needs
            the rows of all others that share with it, for each can compute its
            part of every sum alone: so each sends its rows to all others, and
            for each row of another rank it returns a part of the sum, which is
            as large as the row.

    In backward gradients travel the same ways, as many bytes again. How much
    does a rank send, along each?

    Counts and weights are left out. A row that stays on its rank is not sent.

    Args:
        tokens: T, of a rank.
        k: experts of a token; ep divides T k.
        width: D, numbers of a row.
        size: bytes of a number.
        ep: ranks that have all experts together.
        etp: ranks that share each expert's matrices.

    Returns: bytes that a rank sends in forward and backward of one layer, along
    ep and along etp: two ints.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")

"""planning.experts_divided_twice: Experts, divided twice.

rankwise check planning.experts_divided_twice
rankwise hint planning.experts_divided_twice

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def expert_bytes(
    tokens: int,
    width: int,
    experts: int,
    top_k: int,
    expert_hidden: int,
    tp: int,
    ep: int,
    etp: int,
) -> tuple[int, int]:
    """Experts, divided twice.

    An estimate of memory for a layer with experts. Plans that it calls
    comfortable run out of memory. This is what is known of it:

        a   with ep = 1 and etp = 1 it is right
        b   parameters, gradients and optimizer are always right
        c   with ep = 8 the activations are eight times what it says
        d   a rank receives as many rows along ep as it sends
        e   with etp = 2 and ep = 1 they are twice what it says

    ep     each rank has E / ep experts, and tokens of its own. A row of D
           numbers goes to the rank of each of the k experts that a token has
           chosen; choices fall evenly.
    etp    ranks share each expert's matrices: each has F / etp of its features.
           All of them need the rows of all: each gathers what came to the
           others.
    tp     ranks share out the tokens of a micro-batch before they are sent.

    An expert has three matrices [D, F]. Its parameters take 18 bytes each. Of
    each row that it computes with, a rank keeps numbers of 2 bytes: D that come
    in, D that go out, and for each of its features the gate, the other product,
    and what is made of both.

    Find what is divided twice, and mend it.

    Args:
        tokens: of a micro-batch, before tp shares them out; tp divides them.
        width: D.
        experts: E; ep divides it.
        top_k: k; ep divides the choices of a rank.
        expert_hidden: F; etp divides it.
        tp, ep, etp: ranks along each axis.

    Returns: bytes of a rank's experts that stay, and bytes of activations, two
    ints.

    Budget: a formula for each.
    """
    parameters = experts // ep * 3 * width * expert_hidden // etp
    rows = tokens * top_k // (tp * ep)
    numbers = rows * (3 * expert_hidden // etp + 2 * width)
    return 18 * parameters, 2 * numbers

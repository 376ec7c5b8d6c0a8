"""planning.bound_by_communication:
From where on computing takes longer than sending.

rankwise check planning.bound_by_communication
rankwise hint planning.bound_by_communication

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def computing_bound_from(
    strategy: str,
    ranks: int,
    flops: int,
    bandwidth: int,
    size: int,
    width: int,
    queries: int,
    keys: int,
) -> int:
    """From where on computing takes longer than sending.

    Communication costs nothing where computing hides it. Each kind of
    parallelism hides it behind something else, and for each there is one number
    that decides. From which x on does computing take as long as sending, or
    longer?

    A rank computes C FLOP in a second, and sends W bytes in a second; latency
    is left out. Numbers have z bytes. A weight takes 2 FLOPs for each token in
    forward and 4 in backward. Among n ranks a gather or a reduce-scatter of s
    bytes takes a rank's link (n-1)/n s, an all-reduce twice that.

    ddp     gradients are all-reduced once in a step, behind the backward of the
            same weights. x: tokens of a rank in a step.
    fsdp    weights are gathered for forward, and hide behind forward; they are
            gathered again for backward, and gradients are reduce-scattered, and
            both hide behind backward. x: tokens of a rank in a step; forward
            and backward must both hide.
    tp      n ranks share the two matrices of a feed-forward, [D, x] and [x, D].
            In forward its output, D numbers for each token, is all-reduced. x:
            features, all ranks together, for which the products take as long as
            the all-reduce.
    cp      blocks of keys and values go around a ring, 2 K numbers for each
            token. While a rank sends one block, it computes attention of its
            own queries to it: 4 A FLOPs for each pair of tokens, where every
            block is as large as the rank's own. x: tokens of a rank.
    pp      a stage sends its output on, D numbers for each token, while it
            computes forward of the next micro-batch: x layers of 12 D² weights.
            x: layers of a stage.

    Args:
        strategy: "ddp", "fsdp", "tp", "cp" or "pp".
        ranks: n, along this axis. With n = 1 nothing is sent.
        flops: C.
        bandwidth: W.
        size: z.
        width: D.
        queries: A, width of all heads of queries.
        keys: K, width of all heads of keys.

    Returns: the least whole x, 1 or more. All arguments are whole numbers: be
    exact.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")

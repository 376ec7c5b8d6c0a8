"""planning.does_it_fit: The cheapest change that makes it fit.

rankwise check planning.does_it_fit
rankwise hint planning.does_it_fit

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def cheapest_change(
    layers: int,
    weights: int,
    width: int,
    tokens: int,
    micro_batches: int,
    kept: int,
    inputs: int,
    ranks: int,
    node: int,
    stages: int,
    memory: float,
    flops: float,
    intra: float,
    inter: float,
) -> str | None:
    """The cheapest change that makes it fit.

    n ranks train replicas of a model: each has everything, and reads m
    micro-batches of T tokens in a step. It does not fit, or perhaps it does.
    You may make one change. Which of those that fit costs least time?

    A model has N = L w parameters, each with 2 bytes, 4 of its gradient and 12
    of the optimizer. Of a micro-batch, T L `kept` bytes of activations are
    held. A step computes m 6 N T FLOPs, and all-reduces 2 N bytes of gradients
    at its end. Among k ranks, a gather or a scatter of s bytes takes (k-1)/k s
    / bandwidth, an all-reduce twice that. Nothing is hidden.

    nothing     as it is.
    zero1       the optimizer's 12 bytes are shared out over n ranks. A scatter
                and a gather take as long as the all-reduce did.
    recompute   layers keep their input, T `inputs` bytes each; one layer at a
                time is made again, with all it keeps. A step computes m 8 N T.
    fsdp        all 18 bytes are shared out over n ranks; besides, 8 bytes for
                each parameter of one layer are there for a while. Instead of
                the all-reduce, for each micro-batch 2 N bytes are gathered
                twice and scattered once.
    tp          t ranks of a node share everything: 18 N and activations are
                divided by t. Together they read t m micro-batches; each takes a
                t-th of the time, so computing takes as long as before. For each
                of them, in each layer, 2 T D bytes are all-reduced 4 times
                among t ranks within the node. Gradients, 2 N / t bytes, are
                all-reduced among n / t.
    pp          p ranks have L / p layers each, and read p m micro-batches
                together. 18 N is divided by p; p micro-batches are in flight on
                the first rank. A bubble makes computing (p-1) / (p m) longer.
                Gradients, 2 N / p bytes, are all-reduced among n / p.

    Gradients and weights travel between nodes at `inter`, tp's activations
    within a node at `intra`.

    Args:
        layers, weights, width: L; w, parameters of a layer; D.
        tokens, micro_batches: T, m.
        kept, inputs: bytes of a token in a layer, and in its input.
        ranks, node, stages: n, t, p.
        memory: bytes of a rank. It may be full.
        flops: that a rank computes in a second.
        intra, inter: bytes per second within a node and between nodes.

    Returns: the name of the change; None if none fits. Where two are equally
    good, either will do.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")

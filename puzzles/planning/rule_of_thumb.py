"""planning.rule_of_thumb: A rule of thumb, and its price.

rankwise check planning.rule_of_thumb
rankwise hint planning.rule_of_thumb

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def rule_and_price(
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    weights: float,
    seconds: float,
    stream: float,
    activations: float,
    memory: float,
    intra: float,
    inter: float,
) -> tuple[int, int, int, float]:
    """A rule of thumb, and its price.

    Engineers choose a split of their ranks by a short list, from top to bottom:

        1. Let all ranks be replicas, with the optimizer's state shared out
           among them.
        2. As long as that is not possible, double the tensor axis, up to the
           ranks of a node.
        3. As long as it still is not possible, double the number of stages.
        4. What is left of the ranks are replicas.

    Write it as a function; and find out how much longer its step takes than the
    best split's that is possible, of all in which t, p and d are powers of two
    and t is at most a node.

    possible   d divides the batch, p divides the layers, and a rank has room:
               for (6 + 12 / d) bytes of each of its parameters, of which there
               are weights / (t p), and for the activations / (t p) of min(p, m)
               windows, where m = batch / d.
    time       a window takes a rank seconds / (t p), and along the tensor axis
               an all-reduce of stream / p bytes. A pipeline takes m + p - 1
               times that. Then 2 bytes of each of its parameters are
               all-reduced among d replicas.
    rings      an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S /
               bandwidth. Ranks of the tensor axis are neighbours, then come
               replicas: t ranks are within a node if t <= node, and all of t d
               are, if t d <= node; otherwise it takes the slow links.

    Args:
        ranks: n = t p d, a power of two.
        node: ranks in a node, a power of two.
        batch: windows of a step. A micro-batch is one window.
        layers: of the model.
        weights: parameters of the model.
        seconds: that one rank alone would compute for a window, forward and
            backward.
        stream: bytes that are all-reduced along the tensor axis for a window,
            all layers together.
        activations: bytes that a window keeps until its backward, all layers
            together.
        memory: bytes of a rank.
        intra, inter: bytes per second within a node and between nodes.

    Returns: (t, p, d, ratio): the split of the rule, and its seconds over those
    of the best one, at least 1. The rule finds a split in all cases.

    Budget: powers of two alone are tried.
    """
    raise NotImplementedError("not solved yet")

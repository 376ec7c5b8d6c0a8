"""composition.best_split: How many ranks for which axis.

rankwise check composition.best_split
rankwise hint composition.best_split

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def best_split(
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    seconds: float,
    stream: float,
    state: float,
    activations: float,
    memory: float,
    intra: float,
    inter: float,
) -> tuple[int, int, int]:
    """How many ranks for which axis.

    n ranks, a model and a batch: choose p, d and t with p d t = n, so that a
    step is as short as can be and every rank has room. Ranks of the tensor axis
    are neighbours, then come those of the data axis. So t ranks are within a
    node if t <= node, and all of t d are, if t d <= node; otherwise what they
    say takes the slow links.

    time      a window takes a rank seconds / (p t), and along the tensor axis
              an all-reduce of stream / p bytes. A pipeline has m = batch / d
              windows and takes m + p - 1 times that. Then gradients are
              all-reduced along the data axis: an eighth of this rank's state.
    rings     an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S /
              bandwidth. Latency, and messages between stages, are left out:
              they are small.
    memory    state / (p t), and activations / (p t) for each window in flight;
              a first stage has p of them in flight, and never more than there
              are.

    p divides the layers, d the batch.

    Args:
        ranks: n.
        node: ranks in a node.
        batch: windows in a step. A micro-batch is one window.
        layers: of the model.
        seconds: that one rank alone would compute for a window, forward and
            backward.
        stream: bytes that are all-reduced along the tensor axis for a window,
            all layers together.
        state: bytes of training state of the whole model.
        activations: bytes that a window keeps until its backward, all layers
            together.
        memory: bytes of a rank.
        intra, inter: bytes per second within a node and between nodes.

    Returns: (p, d, t). Where several splits are equally good, any of them will
    do.

    Budget: each p and each t is tried once. Three loops up to n are too many.
    """
    raise NotImplementedError("not solved yet")

"""planning.best_plan: The best of many plans.

rankwise check planning.best_plan
rankwise hint planning.best_plan

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def best_plan(
    tp: Tensor,
    pp: Tensor,
    micro_batch: Tensor,
    recompute: Tensor,
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    seconds: float,
    start: float,
    stream: float,
    state: float,
    kept: float,
    inputs: float,
    memory: float,
    intra: float,
    inter: float,
) -> int | None:
    """The best of many plans.

    Each row of four columns is a plan: ranks that share matrices (t), stages
    (p), windows of a micro-batch (b), and whether layers are made again in
    backward. Which one has the shortest step? There may be a million of them,
    so compute with columns, as with numbers: t * p is a column, too, and
    `torch.where` chooses between two.

    d = n / (t p) ranks are replicas, and a rank computes m = B / (d b)
    micro-batches. A row is no plan if t p does not divide n, if p does not
    divide the layers, or if d b does not divide B.

    time      a window takes a rank seconds / (t p), four thirds of that if
              layers are made again. Along the tensor axis stream / p bytes are
              all-reduced for it, half as much again if layers are made again. A
              micro-batch takes b times both, and `start` seconds besides; a
              pipeline takes m + p - 1 times that. Then the gradients, state /
              (9 t p) bytes, are all-reduced among d replicas.
    rings     an all-reduce of S bytes among k ranks takes 2 (k-1)/k · S /
              bandwidth. t ranks are within a node if t <= node, and all of t d
              are, if t d <= node; otherwise it takes the slow links.
    memory    state / (t p); for each window of min(p, m) micro-batches kept /
              (t p), or inputs / (t p) if layers are made again, and then b kept
              / (layers · t) besides, for the one that is.

    Args:
        tp, pp, micro_batch: [N], int64: t, p, b of each plan.
        recompute: [N], bool.
        ranks: n.
        node: ranks in a node.
        batch: B, windows of a step.
        layers: of the model.
        seconds: that one rank alone would compute for a window, forward and
            backward.
        start: seconds of a micro-batch, however small it is.
        stream: bytes that are all-reduced along the tensor axis for a window,
            all layers together.
        state: bytes of training state of the whole model.
        kept, inputs: bytes of a window's activations in all layers, and of the
            layers' inputs.
        memory: bytes of a rank.
        intra, inter: bytes per second within a node and between nodes.

    Returns: the row's index, an int; None if no row is a plan that fits. Where
    several are equally good, any of them will do.

    Budget: as many lines for a million plans as for one.
    """
    raise NotImplementedError("not solved yet")

"""planning.fullest_rank: Memory of the fullest rank.

rankwise check planning.fullest_rank
rankwise hint planning.fullest_rank

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def fullest_rank(
    schedule: str,
    ranks: int,
    chunks: int,
    micro_batches: int,
    layers: int,
    weights: int,
    table: int,
    tokens: int,
    kept: int,
    inputs: int,
    recompute: bool,
    logits: int,
) -> tuple[int, int]:
    """Memory of the fullest rank.

    A pipeline fits if its fullest rank does. Which one is that, and how much
    does it hold?

    state         18 bytes for each parameter: 2 in bfloat16, 4 of the gradient,
                  12 of Adam and the parameter in float32. All ranks have L / p
                  layers; the first one has the table of tokens besides, the
                  last one the head, which is as large.
    activations   of each micro-batch in flight, each layer keeps `kept` bytes
                  for a token. With recomputation it keeps its input alone,
                  `inputs` bytes; and one layer at a time is made again in
                  backward, with all of its `kept`.
    logits        `logits` bytes for each token of one micro-batch, on the last
                  rank.

    In flight is what has had its forward and not yet its backward. Of p ranks,
    with r counted from 0:

    gpipe         all m micro-batches, on every rank.
    1f1b          p - r micro-batches, or m if there are fewer.
    interleaved   each rank has v stages of L / (p v) layers. It holds the
                  activations of (v - 1) p + 2 (p - 1 - r) + 1 pairs of a stage
                  and a micro-batch, or of all m v.

    Args:
        schedule: "gpipe", "1f1b" or "interleaved".
        ranks: p.
        chunks: v; 1 for the first two.
        micro_batches: m; a multiple of p for "interleaved".
        layers: L; p v divides it.
        weights: parameters of a layer.
        table: parameters of the table, and of the head.
        tokens: of a micro-batch.
        kept: bytes of a token in a layer.
        inputs: bytes of a token in the input of a layer.
        recompute: whether layers keep their input alone.
        logits: bytes of a token.

    Returns: (the rank, its bytes), two ints; the first rank, where several hold
    as much. With p = 1 it is first and last.

    Budget: a formula, not a loop over ranks. Which ranks cannot be the fullest?
    """
    raise NotImplementedError("not solved yet")

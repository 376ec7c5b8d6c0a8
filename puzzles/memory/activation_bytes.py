"""memory.activation_bytes: Activations of a layer.

rankwise check memory.activation_bytes
rankwise hint memory.activation_bytes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def layer_bytes(
    sequence: int, batch: int, width: int, heads: int, scores: bool
) -> int:
    """Activations of a layer.

    What does one transformer layer keep from its forward until its backward? A
    classic one, as in GPT-3; an activation has 2 bytes, a mask of dropout 1.
    Each operation keeps what its backward will need:

    - two layer norms: their inputs;
    - attention: the input of its three projections (once, for they share it);
      queries, keys and values; the input of its output projection; and the mask
      of the dropout after that;
    - inside attention, for each head and each pair of tokens: the output of the
      softmax, the mask of its dropout, and the output of that dropout;
    - the MLP, which is four times as wide inside: the input of its first
      projection, the input of GELU, the input of its second projection (what
      GELU returned), and the mask of the dropout after that.

    The third kind grows with the square of the sequence. Flash attention and
    selective recomputation do not keep it, but make it again in backward:
    `scores` is False.

    Args:
        sequence: tokens in a sequence.
        batch: sequences in a micro-batch.
        width: of the residual stream; queries, keys and values together have
            this width each.
        heads: of attention.
        scores: whether the matrices inside attention are kept.

    Returns: bytes of one layer, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")

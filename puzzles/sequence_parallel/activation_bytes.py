"""sequence_parallel.activation_bytes: Activations of a layer on one of t ranks.

rankwise check sequence_parallel.activation_bytes
rankwise hint sequence_parallel.activation_bytes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def activation_bytes(
    sequence: int,
    batch: int,
    width: int,
    heads: int,
    ranks: int,
    sequence_parallel: bool,
    scores: bool,
) -> int:
    """Activations of a layer on one of t ranks.

    What does one transformer layer keep on a rank, from its forward until its
    backward? A classic one, as in GPT-3, split among t ranks; an activation has
    2 bytes, a mask of dropout 1. On one rank alone it keeps 34 bytes for each
    of the sequence · batch · width numbers that go through it, and the matrices
    of attention:

    - between the regions that are split: the inputs of two layer norms, what
      the norms hand to attention and to the MLP, and the masks of the two
      dropouts after these;
    - inside attention: queries, keys and values, and the input of the output
      projection;
    - inside attention, for each head and each pair of tokens: the output of the
      softmax, the mask of its dropout, and the output of that dropout
      (`scores`; selective recomputation makes them again instead);
    - inside the MLP, which is four times as wide: input and output of GELU.

    Tensor parallelism splits what lies inside, by heads or by columns. Of what
    lies between, every rank has all tokens. With sequence parallelism it has a
    slice; what attention and MLP get is kept as slices, too, and gathered again
    in backward.

    Args:
        sequence: s, tokens in a sequence.
        batch: b, sequences in a micro-batch.
        width: h, of the residual stream; queries, keys and values of all heads
            together have this width each.
        heads: a, of attention.
        ranks: t, which divides s, h and a.
        sequence_parallel: whether there are slices between the regions.
        scores: whether the matrices inside attention are kept.

    Returns: bytes of one layer on one rank, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")

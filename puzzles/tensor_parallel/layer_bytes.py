"""tensor_parallel.layer_bytes: The bytes of a layer.

rankwise check tensor_parallel.layer_bytes
rankwise hint tensor_parallel.layer_bytes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def layer_bytes(
    batch: int,
    sequence: int,
    width: int,
    ranks: int,
    itemsize: int,
    side_by_side: bool,
) -> int:
    """The bytes of a layer.

    A transformer layer has two regions in which ranks share the work, attention
    and the MLP. Each has an all-reduce of B S D numbers at its end on the way
    there, and one at its beginning on the way back:

        y = x + attention(norm(x))        z = y + mlp(norm(y))

    PaLM and GPT-J put the two side by side: z = x + attention(norm(x)) +
    mlp(norm(x)). Both read the same, and both add to the same. Then f stands
    before both, g after both, and they are one region.

    How many bytes does one rank send for one layer, forward and backward? Count
    all-reduces that send as little as an all-reduce can. Weights and their
    gradients are not counted: they stay where they are.

    Args:
        batch: B, sequences.
        sequence: S, tokens in each.
        width: D, of the residual stream. The number of ranks divides it.
        ranks: t, that share the layer; at least 1.
        itemsize: bytes of a number: 2 in bfloat16.
        side_by_side: whether attention and the MLP stand side by side.

    Returns: bytes, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")

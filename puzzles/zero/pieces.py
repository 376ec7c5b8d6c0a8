"""zero.pieces: The pieces of parameters in a shard.

rankwise check zero.pieces
rankwise hint zero.pieces

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def pieces_of(
    sizes: list[int], rank: int, ranks: int
) -> list[tuple[int, int, int]]:
    """The pieces of parameters in a shard.

    Lay all parameters one after another in one flat row. Pad the row to a
    multiple of the number of ranks, and cut it into shards of equal length:
    rank r holds shard r. The cuts take no notice of where a parameter ends, so
    a shard may hold the end of one, the whole of others, and the beginning of
    the next; the last ones may hold nothing but padding.

        5 and 6 elements, 3 ranks
        |a a a a|a b b b|b b b .|
        rank 1 holds (0, 4, 5) and (1, 0, 3)

    Args:
        sizes: elements of each parameter, in order.
        rank: whose shard.
        ranks: how many ranks.

    Returns: for each parameter of which the shard holds anything, in order:
    (its index, begin, end), where the shard holds elements [begin, end) of it.

    Budget: a few lines for each parameter, however large it is.
    """
    raise NotImplementedError("not solved yet")

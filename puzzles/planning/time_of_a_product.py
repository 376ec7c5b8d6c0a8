"""planning.time_of_a_product: Time of a product, by its shape.

rankwise check planning.time_of_a_product
rankwise hint planning.time_of_a_product

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def product_seconds(
    rows: int,
    inner: int,
    columns: int,
    size: int,
    peak: float,
    bandwidth: float,
    processors: int,
    tile_rows: int,
    tile_columns: int,
) -> float:
    """Time of a product, by its shape.

    How long does a GPU take for the product [rows, inner] x [inner, columns]?
    Two things happen at once, and the slower one decides.

    moving      the two matrices are read from memory and the result is written,
                each number once.
    computing   the result is cut into tiles of `tile_rows` x `tile_columns`.
                Each of the GPU's processors computes one tile at a time, and
                needs 2 · tile_rows · tile_columns · inner FLOPs for it; all
                together reach `peak`, so one reaches its part. A tile that the
                matrix does not fill takes as long as a full one. Tiles are
                computed in waves: a processor without a tile waits for the end
                of the last wave.

        [100, 1000] x [1000, 100], tiles of 64 x 64, 3 processors
        2 x 2 tiles, so 2 waves: the time of 6 tiles,
        for a result that is as large as 2.4

    Args:
        rows, inner, columns: of the two matrices.
        size: bytes of a number.
        peak: FLOP per second of all processors together.
        bandwidth: bytes per second from and to memory.
        processors: how many there are.
        tile_rows, tile_columns: of a tile.

    Returns: seconds.

    Budget: a formula, not a loop over tiles.
    """
    raise NotImplementedError("not solved yet")

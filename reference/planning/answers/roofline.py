"""How long a product takes: by its FLOPs, by its bytes, and by the tiles that it is cut into.

A GPU cuts the result into tiles, and each of its processors computes one at a time. A tile that the matrix does not
fill takes as long as a full one, and so does the last wave, in which some processors have none. NVIDIA, "Matrix
multiplication background user's guide" (tile and wave quantization); Williams et al. 2009, "Roofline".
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
    """Seconds of [rows, inner] x [inner, columns]: those of its waves of tiles, or of its bytes, if these take longer.

    Args:
        rows, inner, columns: of the two matrices.
        size: bytes of a number.
        peak: FLOP per second of all processors together.
        bandwidth: bytes per second from and to memory.
        processors: that compute a tile each.
        tile_rows, tile_columns: of a tile of the result.
    """
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    waves = -(-tiles // processors)
    wave = 2 * tile_rows * tile_columns * inner * processors / peak
    moved = size * (rows * inner + inner * columns + rows * columns) / bandwidth
    return max(waves * wave, moved)

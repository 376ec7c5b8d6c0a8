"""What tensor parallelism sends in a layer, as a formula.

A layer has two regions, attention and MLP, and each adds up B S D numbers twice: at its end on the way there, at its
beginning on the way back. Both may stand side by side and read the same x, as in PaLM: y = x + attention(x) + mlp(x).
Then they are one region, and half of the sums is left (Chowdhery et al. 2022, "PaLM", sec. 2; Pope et al. 2022,
"Efficiently scaling transformer inference", sec. 3.4). What a whole model sends is in `cost`.
"""


def layer_bytes(batch: int, sequence: int, width: int, ranks: int, itemsize: int, side_by_side: bool) -> int:
    """Bytes that a rank sends in forward and backward of one layer, by all-reduces that send the fewest.

    Args:
        batch, sequence, width: B, S, D of what a layer is given; `ranks` divides D.
        ranks: of the tensor axis.
        itemsize: bytes of a number.
        side_by_side: whether attention and MLP read the same x.
    """
    regions = 1 if side_by_side else 2
    return 2 * regions * 2 * (ranks - 1) * (batch * sequence * width // ranks) * itemsize

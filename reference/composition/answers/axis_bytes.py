"""What a rank sends along each axis, for the back of an envelope; `traffic` has it for any model, both ends included.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 3.
"""


def axis_bytes(
    p: int, d: int, t: int, batch: int, micro_batch: int, layers: int, width: int, sequence: int
) -> tuple[int, int, int]:
    """Bytes that a rank in the middle of a pipeline sends in a step along the axes pipe, data and tensor.

    Args:
        p, d, t: ranks on each axis; one stage on each rank. p divides the layers, t the width.
        batch: B, windows in a step.
        micro_batch: b, windows in a micro-batch.
        layers: l, each of 12 h² weights.
        width: h.
        sequence: s, tokens in a window.
    """
    m = batch // (d * micro_batch)
    stream = 2 * micro_batch * sequence * width  # bytes, in 16 bits
    pipe = 2 * m * stream if p > 1 else 0
    gradients = 2 * 12 * layers * width**2 // (p * t)
    data = 2 * (d - 1) * gradients // d
    tensor = m * (layers // p) * 4 * 2 * (t - 1) * stream // t
    return pipe, data, tensor

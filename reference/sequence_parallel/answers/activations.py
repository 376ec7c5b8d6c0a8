"""What a transformer layer keeps on one of t ranks, for the back of an envelope.

`reference.memory.korthikanti` has the same as a table, term by term.
"""


def activation_bytes(
    sequence: int, batch: int, width: int, heads: int, ranks: int, sequence_parallel: bool, scores: bool
) -> int:
    """Bytes of activations that one classic layer keeps for backward on each rank.

    |                              | with scores                        | without, selective recomputation |
    |------------------------------|------------------------------------|----------------------------------|
    | tensor parallel              | s b h (10 + 24/t + 5 a s / (h t))  | s b h (10 + 24/t)                |
    | tensor and sequence parallel | s b h (34/t + 5 a s / (h t))       | s b h 34/t                       |

    Args:
        sequence: s, tokens in a sequence.
        batch: b, sequences in a micro-batch.
        width: h.
        heads: a.
        ranks: t, which divides s, h and a.
        sequence_parallel: whether what lies between attention and MLP is split by tokens.
        scores: whether attention's s x s matrices are kept.

    Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", table 2.
    """
    inside = sequence * batch * (24 * width + 5 * heads * sequence * scores) // ranks
    between = sequence * batch * 10 * width
    return inside + (between // ranks if sequence_parallel else between)

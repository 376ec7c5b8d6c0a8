"""The fullest rank of a pipeline: the first has most micro-batches in flight, the last has the head and its logits.

Ranks between them have as many layers, no table, and no more in flight than the first. So of all p, two are enough to
look at. `memory.parts` has it for every schedule and layout; `reference.pipeline_parallel.answers.held` counts what is
in flight.

Narayanan et al. 2021 (arXiv:2104.04473), sec. 2.2; Korthikanti et al. 2022 (arXiv:2205.05198), sec. 4.2.3 and 5.
"""

STATE = 18  # bytes of a parameter: 2 in bfloat16, 4 of its gradient, 12 of Adam and of the parameter in float32


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
    """The rank that holds most, and how many bytes; the first one where two hold as much.

    Args:
        schedule: "gpipe", "1f1b" or "interleaved".
        ranks: p.
        chunks: v, stages of a rank, of L / (p v) layers each; 1 but for "interleaved".
        micro_batches: m; of "interleaved" a multiple of p.
        layers: L, of the model; p v divides them.
        weights, table: parameters of a layer; of the table of tokens, and as many of the head.
        tokens: of a micro-batch.
        kept, inputs: bytes that a token keeps in a layer, and those of the layer's input alone.
        recompute: whether layers keep their inputs alone, and are made again one by one.
        logits: bytes of a token's logits, on the last rank.
    """

    def in_flight(rank: int) -> int:
        after = ranks - 1 - rank
        most = {"gpipe": micro_batches, "1f1b": after + 1, "interleaved": (chunks - 1) * ranks + 2 * after + 1}
        return min(most[schedule], micro_batches * chunks)

    def bytes_of(rank: int) -> int:
        ends = (rank == 0) + (rank == ranks - 1)
        parameters = layers // ranks * weights + ends * table
        stage = layers // (ranks * chunks) * tokens * (inputs if recompute else kept)
        made_again = tokens * kept if recompute else 0
        of_loss = tokens * logits if rank == ranks - 1 else 0
        return STATE * parameters + in_flight(rank) * stage + made_again + of_loss

    fullest = max((0, ranks - 1), key=bytes_of)
    return fullest, bytes_of(fullest)

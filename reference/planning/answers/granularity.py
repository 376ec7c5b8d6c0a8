"""What activations take, by what is made again: the estimate that let a job in at 5.9 GB, and it ran out at 107.

An estimator that was fitted to full recomputation said the same for every granularity (OpenPipe/ART, issue 913). What
is kept differs by more than ten times.

| granularity | kept of L layers      | and while one runs backward                |
|-------------|-----------------------|--------------------------------------------|
| none        | all                   | nothing more                               |
| selective   | all but the scores    | the scores of one layer                    |
| full        | an input every k      | all of k layers, which are made again      |

Korthikanti et al. 2022 (arXiv:2205.05198), sec. 5; Chen et al. 2016 (arXiv:1604.06174) for groups of layers.
"""


def activation_bytes(layers: int, tokens: int, kept: int, scores: int, inputs: int, recompute: str, every: int) -> int:
    """Bytes of activations of one micro-batch at their peak.

    Args:
        layers: L, of this rank.
        tokens: of the micro-batch.
        kept: bytes of a token in a layer where nothing is made again, the scores among them.
        scores: bytes of what attention makes between its products.
        inputs: bytes of a layer's input.
        recompute: "none", "selective" or "full".
        every: k, layers from one input that is kept to the next, which divides L; for "full" alone.
    """
    of_a_token = {
        "none": layers * kept,
        "selective": layers * (kept - scores) + scores,
        "full": layers // every * inputs + every * kept,
    }
    return tokens * of_a_token[recompute]

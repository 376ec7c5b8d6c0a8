"""MFU and HFU: what a run reaches of its GPUs' peak, without and with what it computes again.

Model FLOPs are what training needs, however it is done; so MFU compares runs. Hardware FLOPs are what was computed;
recomputation raises them and makes nothing better. Chowdhery et al. 2022 (arXiv:2204.02311), appendix B; Korthikanti et
al. 2022 (arXiv:2205.05198), appendix A.
"""


def mfu_and_hfu(
    layers: int,
    layer_weights: int,
    head_weights: int,
    attended: int,
    sequence: int,
    tokens_per_second: float,
    gpus: int,
    peak: float,
    recompute: str,
) -> tuple[float, float]:
    """Model and hardware FLOPs per second over the peak of all GPUs, from 0 to 1.

    Args:
        layers: L.
        layer_weights, head_weights: weights that multiply, of a layer and of the head.
        attended: A, width of all heads of queries together.
        sequence: s, tokens of a window.
        tokens_per_second: of all GPUs together.
        gpus: that train.
        peak: FLOP per second of one.
        recompute: "none", "selective" (attention's scores and what they weigh) or "full" (all layers).
    """
    scores = 4 * attended * sequence
    layer = 2 * layer_weights + scores
    again = {"none": 0, "selective": scores, "full": layer}[recompute]
    needed = 3 * (layers * layer + 2 * head_weights)
    of_peak = tokens_per_second / (gpus * peak)
    return needed * of_peak, (needed + layers * again) * of_peak

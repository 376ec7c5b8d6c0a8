"""planning.mfu_or_hfu: MFU or HFU.

rankwise check planning.mfu_or_hfu
rankwise hint planning.mfu_or_hfu

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
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
    """MFU or HFU.

    A run trains so many tokens in a second. How good is that? Two numbers are
    published, and they are mixed up again and again.

    MFU   model FLOPs utilization: what training needs, over what the GPUs could
          do at their peak.
    HFU   hardware FLOPs utilization: what was computed, over the same. It
          counts what is computed again, too.

    A token needs 2 FLOPs for each weight that it meets, and in each layer 4 A S
    for its attention: scores, and what they weigh, of all S tokens of its
    window. That is forward; backward is twice as much. The head multiplies as
    well. Recomputation repeats a part of forward:

    none        nothing.
    selective   of each layer the attention: its 4 A S, and none of its weights.
    full        all layers, whole; not the head.

        2 layers of 100 weights, a head of 50, A = 5, S = 10
        forward 2 (200 + 200) + 100 = 900, so 2700 in all
        8 tokens a second on 2 GPUs of 20,000 FLOP/s
        MFU 8 · 2700 / 40,000 = 0.54
        with full recomputation 800 more: HFU 0.7

    Args:
        layers: L.
        layer_weights: of a layer, all of which a token meets.
        head_weights: of the head.
        attended: A, width of all heads of queries together.
        sequence: S.
        tokens_per_second: of all GPUs together.
        gpus: how many there are.
        peak: FLOP per second of one.
        recompute: "none", "selective" or "full".

    Returns: (MFU, HFU), as parts of 1.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")

"""The cheapest change that makes a model fit: each takes other bytes away, and each costs something else.

| change    | what becomes smaller          | what it costs                                             |
|-----------|-------------------------------|-----------------------------------------------------------|
| zero1     | optimizer: 12 / n             | nothing: a reduce-scatter and a gather for an all-reduce  |
| recompute | activations: inputs alone     | a forward more, a third of all computing                  |
| fsdp      | state: 1 / n                  | three passes over the weights for each micro-batch        |
| tp        | everything: 1 / t             | four all-reduces of the stream for each layer             |
| pp        | state: 1 / p; activations not | a bubble                                                  |

A pipeline's first rank holds p micro-batches of L / p layers: as much as one rank holds of one micro-batch.

Rajbhandari et al. 2020 (arXiv:1910.02054); Korthikanti et al. 2022 (arXiv:2205.05198); Narayanan et al. 2021
(arXiv:2104.04473).
"""


def cheapest_change(
    layers: int,
    weights: int,
    width: int,
    tokens: int,
    micro_batches: int,
    kept: int,
    inputs: int,
    ranks: int,
    node: int,
    stages: int,
    memory: float,
    flops: float,
    intra: float,
    inter: float,
) -> str | None:
    """The change with the shortest step of those that fit; None if none does.

    Args:
        layers, weights, width: L; parameters of each; D, numbers of a token in the stream.
        tokens: of a micro-batch.
        micro_batches: m, of a replica, where every rank is one.
        kept, inputs: bytes that a token keeps in a layer, and those of the layer's input alone.
        ranks: n.
        node: ranks of a node, t for "tp".
        stages: p for "pp".
        memory: bytes of a rank.
        flops: FLOP per second that a rank reaches.
        intra, inter: bytes per second and direction, within a node and between nodes.

    Returns:
        "nothing", "zero1", "recompute", "fsdp", "tp" or "pp".
    """
    t, p, m = node, stages, micro_batches
    numel = layers * weights
    activations = layers * tokens * kept
    computing = m * 6 * numel * tokens / flops
    pass_over_weights = (ranks - 1) / ranks * 2 * numel / inter
    stream = 2 * (t - 1) / t * 2 * tokens * width / intra

    def summed(share: int) -> float:
        replicas = ranks // share
        return 2 * (replicas - 1) / replicas * 2 * numel / share / inter

    bytes_and_seconds = {
        "nothing": (18 * numel + activations, computing + summed(1)),
        "zero1": (6 * numel + 12 * numel / ranks + activations, computing + summed(1)),
        "recompute": (18 * numel + layers * tokens * inputs + tokens * kept, computing * 4 / 3 + summed(1)),
        "fsdp": (18 * numel / ranks + activations + 8 * weights, computing + 3 * m * pass_over_weights),
        "tp": ((18 * numel + activations) / t, computing + t * m * layers * 4 * stream + summed(t)),
        "pp": (18 * numel / p + activations, computing * (1 + (p - 1) / (p * m)) + summed(p)),
    }
    possible = [name for name, (needed, _) in bytes_and_seconds.items() if needed <= memory]
    return min(possible, key=lambda name: bytes_and_seconds[name][1], default=None)

"""The fastest way to split n ranks into p · d · t that fits into memory, by PTD-P's model. See `ptd_p` for a finer one.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 3.
"""


def best_split(
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    seconds: float,
    stream: float,
    state: float,
    activations: float,
    memory: float,
    intra: float,
    inter: float,
) -> tuple[int, int, int]:
    """(p, d, t) with the shortest step among those that fit: one at least.

    Args:
        ranks: n = p d t.
        node: ranks in a node; the tensor axis is innermost, then data.
        batch: B, windows in a step; d divides it, and a micro-batch is one of them.
        layers: p divides them.
        seconds: that one rank would compute for a window, forward and backward through all layers.
        stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
        state: bytes of training state of the whole model, an eighth of them gradients.
        activations: bytes of all layers that a window needs until its backward.
        memory: bytes of a rank.
        intra, inter: bandwidth within nodes and between them, in bytes per second.
    """

    def step(p: int, d: int, t: int) -> float:
        tensor_link, data_link = (intra if reach <= node else inter for reach in (t, t * d))
        window = seconds / (p * t) + 2 * (t - 1) / t * stream / p / tensor_link
        gradients = state / 8 / (p * t)
        return (batch // d + p - 1) * window + 2 * (d - 1) / d * gradients / data_link

    def fits(p: int, d: int, t: int) -> bool:
        return (state + min(p, batch // d) * activations) / (p * t) <= memory

    found = []
    for p in range(1, ranks + 1):
        if ranks % p == 0 and layers % p == 0:
            for t in range(1, ranks // p + 1):
                d = ranks // p // t
                if ranks == p * d * t and batch % d == 0 and fits(p, d, t):
                    found.append((p, d, t))
    return min(found, key=lambda split: step(*split))

"""The field's rule of thumb as a function, and how much longer its step takes than the best of a small search.

Data parallelism with a distributed optimizer first; if that does not fit, tensor parallelism within a node; then
pipelines across nodes; then data parallelism with what is left. Narayanan et al. 2021 (arXiv:2104.04473), sec. 3,
takeaways 1 to 3; Shoeybi et al., Megatron Core's guide to parallelism.
"""


def rule_and_price(
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    weights: float,
    seconds: float,
    stream: float,
    activations: float,
    memory: float,
    intra: float,
    inter: float,
) -> tuple[int, int, int, float]:
    """(t, p, d) that the rule takes, and its seconds over those of the best split.

    Args:
        ranks: n = t p d, a power of two.
        node: ranks of a node, a power of two.
        batch: B, windows of a step; d divides it, and a micro-batch is one of them.
        layers: p divides them.
        weights: parameters of the model: 6 bytes for each are whole, 12 are shared among d replicas.
        seconds: that one rank would compute for a window.
        stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
        activations: bytes of all layers that a window needs until its backward.
        memory: bytes of a rank.
        intra, inter: bytes per second within a node and between nodes.
    """

    def possible(t: int, p: int) -> bool:
        d = ranks // (t * p)
        if d == 0 or batch % d or layers % p:
            return False
        held = (6 + 12 / d) * weights + min(p, batch // d) * activations
        return held / (t * p) <= memory

    def step(t: int, p: int) -> float:
        d = ranks // (t * p)
        tensor_link, data_link = (intra if reach <= node else inter for reach in (t, t * d))
        window = seconds / (p * t) + 2 * (t - 1) / t * stream / p / tensor_link
        gradients = 2 * weights / (p * t)
        return (batch // d + p - 1) * window + 2 * (d - 1) / d * gradients / data_link

    t = p = 1
    while not possible(t, p):
        t, p = (2 * t, p) if t < min(node, ranks) else (t, 2 * p)

    powers = [2**exponent for exponent in range(ranks.bit_length())]
    best = min(step(a, b) for a in powers if a <= node for b in powers if possible(a, b))
    return t, p, ranks // (t * p), step(t, p) / best

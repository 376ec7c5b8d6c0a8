"""The best of many plans at once: a number of each plan stands in a column, and all arithmetic is on columns.

It is what `layouts` and `predict` do: one plan and a million are one code, and no loop runs over them.
"""

import torch
from torch import Tensor


def best_plan(
    tp: Tensor,
    pp: Tensor,
    micro_batch: Tensor,
    recompute: Tensor,
    ranks: int,
    node: int,
    batch: int,
    layers: int,
    seconds: float,
    start: float,
    stream: float,
    state: float,
    kept: float,
    inputs: float,
    memory: float,
    intra: float,
    inter: float,
) -> int | None:
    """The row of the plan with the shortest step among those that are possible and fit; None if there is none.

    Args:
        tp, pp, micro_batch: [N], int64: ranks that share matrices, stages, windows of a micro-batch.
        recompute: [N], bool: whether layers are made again in backward.
        ranks: n; d = n / (tp pp) are left for replicas.
        node: ranks of a node.
        batch: windows of a step.
        layers: of the model.
        seconds: that one rank would compute for a window, forward and backward.
        start: seconds that each micro-batch costs a rank besides, however small it is.
        stream: bytes that are all-reduced along the tensor axis for a window, all layers together.
        state: bytes of the training state of the whole model, a ninth of them gradients as they travel.
        kept, inputs: bytes of a window's activations in all layers, and of the layers' inputs alone.
        memory: bytes of a rank.
        intra, inter: bytes per second within a node and between nodes.
    """
    shared = tp * pp
    dp = torch.clamp(ranks // shared, min=1)
    m = torch.clamp(batch // (dp * micro_batch), min=1)
    in_flight = torch.minimum(pp, m) * micro_batch
    held = (state + in_flight * torch.where(recompute, inputs, kept)) / shared
    held = held + recompute * micro_batch * kept / layers / tp
    possible = (ranks % shared == 0) & (layers % pp == 0) & (batch % (dp * micro_batch) == 0) & (held <= memory)
    if not possible.any():
        return None

    def ring(k: Tensor, reach: Tensor) -> Tensor:
        return 2 * (k - 1) / k / torch.where(reach <= node, intra, inter)

    computing = seconds / shared * torch.where(recompute, 4 / 3, 1.0)
    exchanged = ring(tp, tp) * stream / pp * torch.where(recompute, 1.5, 1.0)
    step = (m + pp - 1) * (micro_batch * (computing + exchanged) + start) + ring(dp, tp * dp) * state / 9 / shared
    return int(torch.where(possible, step, torch.inf).argmin())

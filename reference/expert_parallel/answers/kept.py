"""A layer with experts that is computed again in backward, and goes the way that it went.

Two scores that are nearly equal may come out in the other order the second time, since sums that are cut otherwise
differ in their last bits. Then a recomputed layer sends a token to another expert, and backward is that of a layer that
was never computed: sizes of messages may not fit, or worse, they do. So which experts were chosen is kept: k whole
numbers for each token, and nothing else (NVIDIA-NeMo/Automodel PR 2635 and PR 3140). What counts how busy experts are
runs once, too (PR 3247).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.memory.recompute import recomputed


def recomputed_layer(
    x: Tensor,
    scores_of: Callable[[Tensor], Tensor],
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    k: int,
    load: Tensor,
    group: ProcessGroup,
) -> Tensor:
    """A mixture of experts of which its input and its choices are kept for backward: [T, D] -> [T, D].

    Args:
        x: [T, D], of this rank.
        scores_of: the router: from x to [T, E]; the last bits may differ from call to call.
        compute: experts of all ranks: from x, experts [T, k] and weights [T, k] to [T, D]. All ranks call it.
        k: experts of a token.
        load: [E] of int64, to which this rank's choices are added.
        group: n ranks.
    """
    decided: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        scores = scores_of(x)
        if not decided:
            decided.append(scores.topk(k).indices)
            load.add_(torch.bincount(decided[0].flatten(), minlength=len(load)))
        return compute(x, decided[0], scores.gather(1, decided[0]))

    return recomputed(run, x)

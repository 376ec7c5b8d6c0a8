"""Error feedback: what was not sent of a gradient goes with the next one."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.plain_memory import top_k


def sums_with_feedback(gradients: Sequence[Tensor], residual: Tensor, k: int, group: ProcessGroup) -> list[Tensor]:
    """The sums of several steps, to each of which a rank brings the k elements that it most misses.

    Args:
        gradients: [N] of this rank, one for each step.
        residual: [N] of this rank, what was not sent before the first of them; afterwards, what was not sent at all.
        k: elements that a rank sends of a step, at most N.
        group: n ranks. Any n.

    Returns:
        For each step [N], the same on every rank.
    """
    sums = []
    for gradient in gradients:
        residual += gradient
        sent = top_k(residual, k)
        residual -= sent
        dist.all_reduce(sent, group=group)
        sums.append(sent)
    return sums

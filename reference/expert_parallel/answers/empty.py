"""A layer of experts in which a rank may get nothing to compute, and takes part all the same.

Nothing is an amount, too. An expert that is called with zero rows makes zero rows, and these have a history: through it
the backward of this rank comes by both exchanges, where all other ranks wait for it, and by its parameters, which get
gradients of zeros. A rank that skips its experts cuts that history. Forward succeeds, and backward of all others hangs.

Seen in Megatron-LM (PR 4851), torchtitan (PR 1166), PaddleFormers (PR 3010) and NeMo Automodel (PR 935).
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.expert_parallel.answers.exchange import exchange_rows


def mixture(x: Tensor, chosen: Tensor, weights: Tensor, up: Tensor, down: Tensor, group: ProcessGroup) -> Tensor:
    """What all ranks' experts make of this rank's tokens: each expert is down(tanh(up(row))).

    Args:
        x: [T, D], tokens of this rank; there may be none.
        chosen: [T, k] of int64, experts of each token.
        weights: [T, k], of what they make.
        up: [E / n, F, D], of this rank's experts.
        down: [E / n, D, F].
        group: n ranks.

    Returns:
        [T, D].
    """
    n, here, k = dist.get_world_size(group), len(up), chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    wanted = torch.bincount(chosen.flatten(), minlength=n * here).view(n, here)
    counts = torch.empty_like(wanted)
    dist.all_to_all_single(counts, wanted, group=group)
    sent, received = wanted.sum(1).tolist(), counts.sum(1).tolist()
    rows = exchange_rows(x[order // k], sent, received, group)
    by_expert = torch.arange(here).repeat(n).repeat_interleave(counts.flatten()).argsort(stable=True)
    parts = rows[by_expert].split(counts.sum(0).tolist())
    made = torch.cat([torch.tanh(part @ a.T) @ b.T for part, a, b in zip(parts, up, down, strict=True)])
    back = exchange_rows(made[by_expert.argsort()], received, sent, group)
    return (back[order.argsort()].view(-1, k, x.shape[1]) * weights[..., None]).sum(1)

"""The feed-forward half of a block, shared by the ranks of a tensor axis: one all-reduce there, one back.

    x ──┬── f ── gate, up: columns ── silu(·) · (·) ── down: rows ── g ── + ── y
        └──────────────────────────────────────────────────────────────┘

What stands between the two matrices treats each feature by itself, so it needs no one else's. Had the first matrix been
split by rows, its parts would have to be summed before silu: silu(a + b) is not silu(a) + silu(b).

Shoeybi et al. 2019, "Megatron-LM", sec. 3, fig. 3a; SwiGLU: Shazeer 2020.
"""

import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from .pairs import enter, leave


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, group: ProcessGroup) -> Tensor:
    """x + down(silu(gate(x)) · up(x)).

    Args:
        x: [B, S, D], the same on every rank.
        gate, up: [F / n, D], this rank's rows.
        down: [D, F / n], this rank's columns.
        group: n ranks.

    Returns:
        [B, S, D], the same on every rank.
    """
    inside = enter(x, group)
    hidden = F.silu(inside @ gate.T) * (inside @ up.T)
    return x + leave(hidden @ down.T, group)

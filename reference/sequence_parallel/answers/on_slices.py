"""The parts of a transformer that meet slices of the sequence, each as short as its idea.

| part            | what it has                              | what it must not forget                                |
|-----------------|------------------------------------------|--------------------------------------------------------|
| embed           | rows of the table; leaves slices         | a scatter does it: an all-reduce sends twice as much   |
| layer_norm      | a slice of the tokens, the whole weights | what it finds of their gradients is a part: sum it     |
| column_linear   | a slice, and some columns of the matrix  | to keep the slice, not what was gathered of it         |
| feed_forward    | all of this, and a residual stream       | to add the residual once, on slices                    |

Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", sec. 4.2.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.sequence_parallel.plain import gather, scatter, shared
from reference.sequence_parallel.region import SequenceRegion


def embed(tokens: Tensor, table: Tensor, group: ProcessGroup) -> Tensor:
    """Look tokens up in a table of which each rank has some rows; leave a slice on each.

    Args:
        tokens: [B, S] of integers, the same on every rank; t divides S.
        table: [V / t, D]: rows [rank · V/t, (rank + 1) · V/t).
        group: t ranks.

    Returns:
        [B, S / t, D].
    """
    row = tokens - group.rank() * len(table)
    here = (row >= 0) & (row < len(table))
    found = F.embedding(row.where(here, 0), table) * here.unsqueeze(-1)
    return scatter(found, group)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, group: ProcessGroup) -> Tensor:
    """LayerNorm of this rank's tokens, with the gradients of all tokens for weight and bias, in one message.

    Args:
        x: [B, S / t, D].
        weight, bias: [D], the same on every rank.
        epsilon: added to the variance.
        group: t ranks.

    Returns:
        [B, S / t, D].

    Ba, Kiros & Hinton 2016, "Layer normalization".
    """
    weight, bias = shared(torch.stack([weight, bias]), group)
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def column_linear(x: Tensor, weight: Tensor, group: ProcessGroup) -> Tensor:
    """All tokens times some columns of a matrix. The slice is kept for backward, which gathers it again.

    Args:
        x: [B, S / t, D].
        weight: [F / t, D]: this rank's rows, which are columns of x Wᵀ.
        group: t ranks.

    Returns:
        [B, S, F / t].
    """
    (y,) = SequenceRegion(group).column_linear(x, weight)
    return y


def feed_forward(
    x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, bias: Tensor, group: ProcessGroup
) -> Tensor:
    """x + down(silu(gate(n)) · up(n)) + bias with n = RMSNorm(x): norm and residual on slices, the rest split inside.

    Args:
        x: [B, S / t, D].
        norm, bias: [D], the same on every rank.
        gate, up: [F / t, D]: this rank's rows.
        down: [D, F / t]: this rank's columns.
        group: t ranks.

    Returns:
        [B, S / t, D].

    Shazeer 2020, "GLU variants improve transformer".
    """
    norm, bias = shared(torch.stack([norm, bias]), group)
    tokens = gather(F.rms_norm(x, norm.shape, norm), group)
    inside = F.silu(tokens @ gate.T) * (tokens @ up.T)
    return x + scatter(inside @ down.T, group) + bias

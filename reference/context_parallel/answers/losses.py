"""Losses of tokens that several ranks hold: which token comes next, and how many there are to divide by.

Both are known before a sequence is cut, and hard to find afterwards. The token that comes after a rank's last one is
another rank's first one; and the number of tokens that count is another one on each rank, and zero on some.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

IGNORED = -100  # the target of a token that does not count


def next_token_loss(logits: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    """This rank's part of the mean loss of a sequence: the parts of all ranks add up to it.

    Args:
        logits: [B, S / n, V], of this rank's tokens.
        tokens: [B, S], of all ranks.
        positions: [S / n], where this rank's tokens stand; from S on there is padding.

    Returns:
        A scalar.
    """
    batch, length = tokens.shape
    shifted = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)  # nothing comes after the last
    targets = shifted[:, positions.clamp(max=length - 1)]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (batch * (length - 1))


def mean_over_ranks(logits: Tensor, targets: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """The mean loss over all tokens of all ranks that count: this rank's part of it, and all of it, for the log.

    Args:
        logits: [T, V].
        targets: [T], `IGNORED` where a token does not count; maybe nowhere, on a rank or on all.
        group: n ranks.

    Returns:
        Two scalars. Gradients flow through the first; where no token counts, both are zero.
    """
    own = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    both = torch.stack([own.detach(), (targets != IGNORED).sum().to(own.dtype)])
    dist.all_reduce(both, group=group)
    total, counted = both
    counted = counted.clamp(min=1)
    return own / counted, total / counted

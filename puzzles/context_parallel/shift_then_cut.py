"""context_parallel.shift_then_cut: Shift before you cut.

rankwise check context_parallel.shift_then_cut
rankwise hint context_parallel.shift_then_cut

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def next_token_loss(
    logits: Tensor, tokens: Tensor, positions: Tensor
) -> Tensor:
    """Shift before you cut.

    A language model is asked for the token that comes next. So the target of a
    token is the one after it in the text: the text, shifted by one. Here each
    rank takes its tokens out of the text and shifts these. It trains, and the
    loss looks much as it should. On one rank it is right.

    But what comes after the last token of a rank is on another rank; and a rank
    that holds a piece of the head and one of the tail has tokens side by side
    that are no neighbours. Only tokens at borders are wrong, a few in
    thousands: no curve shows it. The gradient of each token does. Mend the
    loss.

    Args:
        logits: [B, S/n, V], of this rank's tokens.
        tokens: [B, S], the whole text, the same on every rank.
        positions: [S/n], where this rank's tokens stand in the text, in
            whichever order. At positions from S on there is padding, which
            counts for nothing.

    Returns: this rank's part of the loss, a scalar: the parts of all ranks add
    up to the mean over all B(S-1) tokens of the text that have a next one. A
    rank that has none of these returns 0.

    Budget: no message.
    """
    batch, length = tokens.shape
    padded = torch.nn.functional.pad(tokens, (0, 1), value=-100)
    mine = padded[:, positions.clamp(max=length)]
    targets = torch.nn.functional.pad(mine[:, 1:], (0, 1), value=-100)
    logits, targets = logits.flatten(0, 1), targets.flatten()
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return losses / (batch * (length - 1))

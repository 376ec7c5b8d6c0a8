"""Tokens in the order of their experts, and back: what every mixture of experts does, on however many ranks."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Compute = Callable[[Tensor, Sequence[int]], Tensor]
"""Rows [N, D] in the order of their experts, and how many each expert has, to what those make: [N, D]."""

Back = Callable[[Tensor], Tensor]
"""Of what experts made, [N, D] in their order, what each choice of a token got: [B, S, k, D], zeros for none."""


def in_order_of_experts(x: Tensor, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Back]:
    """A row for each choice of a token: those of the first expert first, and in there those of the first token.

    How many rows there are depends on values. On the meta device there are none, so it is assumed that no choice is
    dropped and that all experts get equally many.

    Args:
        x: [B, S, D].
        chosen: [B, S, k] of int64, below 0 for none.
        experts: E.

    Returns:
        Rows [N, D]; how many each expert has, [E] of int64 on the CPU; and the way back.
    """
    k, flat = chosen.shape[-1], chosen.flatten()
    if x.is_meta:
        order, counts = torch.empty_like(flat), torch.full([experts], len(flat) // experts)
        counts[: len(flat) % experts] += 1
    else:
        order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
        counts = torch.bincount(flat[order], minlength=experts).cpu()

    def back(made: Tensor) -> Tensor:
        return made.new_zeros(len(flat), made.shape[-1]).index_copy(0, order, made).view(*chosen.shape, made.shape[-1])

    return x.flatten(0, 1)[order // k], counts, back


def add_up(made: Tensor, weights: Tensor) -> Tensor:
    """What a token's experts made, weighed and added: [B, S, k, D] and [B, S, k] -> [B, S, D]."""
    return (made * weights[..., None]).sum(-2)

"""Tokens in the order of their experts, and back: what every mixture of experts does, on however many ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Compute = Callable[[Tensor, Sequence[int]], Tensor]
"""Rows [N, D] in the order of their experts, and how many each expert has, to what those make: [N, D]."""


@dataclass(frozen=True)
class ChoicesByExpert:
    """The choices of tokens: those of the first expert first, and in there those of the first token.

    Attributes:
        order: [N] of int64: of each choice in this order, where it was.
        counts: [E] of int64 on the CPU, how many each expert has; N in all.
        shape: [B, S, k] of the choices.
    """

    order: Tensor
    counts: Tensor
    shape: torch.Size

    @classmethod
    def of(cls, chosen: Tensor, experts: int) -> "ChoicesByExpert":
        """Put choices in order.

        How many there are depends on values. On the meta device there are none, so it is assumed that no choice is
        dropped and that all experts get equally many.

        Args:
            chosen: [B, S, k] of int64, below 0 for none.
            experts: E.
        """
        flat = chosen.flatten()
        if flat.is_meta:
            counts = torch.full([experts], len(flat) // experts)
            counts[: len(flat) % experts] += 1
            return cls(torch.empty_like(flat), counts, chosen.shape)
        order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
        return cls(order, torch.bincount(flat[order], minlength=experts).cpu(), chosen.shape)

    def rows(self, x: Tensor) -> Tensor:
        """A row for each choice: [B, S, D] -> [N, D]."""
        return x.flatten(0, 1)[self.order // self.shape[-1]]

    def back(self, made: Tensor) -> Tensor:
        """What each choice got of what experts made, zeros for one that is dropped: [N, D] -> [B, S, k, D]."""
        places = made.new_zeros(self.shape.numel(), made.shape[-1])
        return places.index_copy(0, self.order, made).view(*self.shape, made.shape[-1])


def add_up(made: Tensor, weights: Tensor) -> Tensor:
    """What a token's experts made, weighed and added: [B, S, k, D] and [B, S, k] -> [B, S, D]."""
    return (made * weights[..., None]).sum(-2)

"""What a model is to predict of a text: the next token, or those that were hidden from it.

| objective    | tokens [B, S] that the model reads | targets [B, S]                       | counted in a window |
|--------------|------------------------------------|--------------------------------------|---------------------|
| NextToken    | all but the last of S + 1          | the token after each                 | S                   |
| MaskedTokens | the same, with some replaced       | those that were; others are IGNORED  | a share of S        |

Both are functions of a window and of its tokens' seeds, so a step reads the same on any number of ranks. Equally many
tokens count in each window, so each rank knows how many count on all of them: the number that losses are divided by.

Devlin et al. 2019, "BERT", for masks; drawn anew in each step: Liu et al. 2019, "RoBERTa", sec. 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a command line knows what a model is to predict, and does without torch
    from torch import Tensor

IGNORED = -100  # a target that does not count, as in torch.nn.functional.cross_entropy


class Objective(Protocol):
    """What is made of windows."""

    def counted(self, sequence: int) -> int:
        """How many targets of a window of so many tokens count."""

    def examples(self, windows: Tensor, token_seeds: Tensor) -> tuple[Tensor, Tensor]:
        """What the model reads, and what it is to predict: [B, S + 1] and [B, S], of int64 -> [B, S] each."""


@dataclass(frozen=True)
class NextToken:
    """The token after each."""

    def counted(self, sequence: int) -> int:
        """All of them."""
        return sequence

    def examples(self, windows: Tensor, token_seeds: Tensor) -> tuple[Tensor, Tensor]:
        """All but the last, and all but the first."""
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens that are hidden: those of each window whose seeds are smallest."""

    share: float = 0.15  # of the tokens of a window; at least one
    mask: int = 0  # stands for a hidden token: a byte that no text has

    def counted(self, sequence: int) -> int:
        """Those that are hidden."""
        return max(1, round(self.share * sequence))

    def examples(self, windows: Tensor, token_seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens with some hidden, and the hidden ones."""
        tokens = windows[:, :-1]
        hidden = tokens.new_zeros(tokens.shape).bool()
        hidden.scatter_(1, token_seeds.argsort(dim=1)[:, : self.counted(tokens.shape[1])], True)
        return tokens.masked_fill(hidden, self.mask), tokens.masked_fill(~hidden, IGNORED)

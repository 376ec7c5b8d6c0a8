"""The ops of a model whose tokens are shared out: only in attention do they look at those of other ranks."""

from torch import Tensor

from reference.models.ops import Around, Ops

from .attention import ContextAttention
from .tokens import Mask


class ContextParallel(Around):
    """Attention over ranks. A model is given the tokens that this rank holds, with their positions.

    Args:
        inside: ops of a model, whose heads may be split further.
        attention: between the tokens of all ranks.
    """

    def __init__(self, inside: Ops, attention: ContextAttention) -> None:
        super().__init__(inside)
        self.between_ranks = attention

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Of this rank's tokens, [B, H, local, d], to those of all."""
        return self.between_ranks(query, key, value, Mask(causal))

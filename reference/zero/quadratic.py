"""A loss with a gradient of one line, where a puzzle or a picture is about who keeps what, not about the model.

L(w) = ½ |A w - b|², and every rank has rows of A and b of its own: the losses of all ranks add up, and so do their
gradients, Aᵀ(A w - b).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor


@dataclass(frozen=True)
class Quadratic:
    """One rank's rows.

    Attributes:
        a: (rows, parameters)
        b: (rows,)
    """

    a: Tensor
    b: Tensor

    def gradient(self, w: Tensor) -> Tensor:
        """Of this rank's loss, (parameters,)."""
        return self.a.T @ (self.a @ w - self.b)

    def gradients(self, w: Tensor, ends: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """(layer, its gradient), one layer after another, the last first, as a backward pass finds them.

        Args:
            w: (parameters,)
            ends: where each layer ends in `w`.
        """
        error = self.a @ w - self.b
        for layer, (begin, end) in reversed(list(enumerate(pairwise((0, *ends))))):
            yield layer, self.a[:, begin:end].T @ error

"""DeMo: replicas keep momenta of their own, and send the few cosines that say most about them.

A momentum is cut into pieces of 64 elements. Of the discrete cosine transform of each, a rank sends the largest
coefficients with their places, and takes what they say out of its momentum: what it did not send stays there, and is
its residual. All add up what has come, and take the sign: replicas stay equal, though their momenta are not.

    b m + g -> cosines of each piece -> the k largest: (n - 1) N/64 k (1 + 4) bytes -> sum -> back -> sign

A place within 64 takes a byte. The paper cuts matrices into squares and transforms rows and columns; pieces of rows are
enough to see how it works.

Peng et al. 2024, "DeMo: decoupled momentum optimization" (arXiv:2411.19870).
"""

from collections.abc import Sequence
from math import ceil, pi

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

from .memory import WithResiduals

PIECE = 64
PLACE = torch.uint8
COEFFICIENT = torch.float32


def cosines(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal discrete cosine transform (DCT-II): y = C x, x = C^T y. [L, L]."""
    frequency, place = torch.arange(length, dtype=torch.float64), torch.arange(length, dtype=torch.float64)
    matrix = torch.cos(pi / length * (place + 0.5) * frequency.unsqueeze(1)) * (2 / length) ** 0.5
    matrix[0] /= 2**0.5
    return matrix.to(device, dtype)


class DeMo(WithResiduals):
    """Signs of sums of a few cosines of each rank's momentum.

    Args:
        communicator: n ranks.
        kept: how many coefficients of each piece a rank sends.
        decay: of the momentum, b.

    Raises:
        BadInput: for none, or more than a piece has.
    """

    def __init__(self, communicator: Communicator, kept: int = 4, decay: float = 0.9) -> None:
        if not 1 <= kept <= PIECE:
            raise BadInput(f"DeMo sends 1 to {PIECE} coefficients of a piece, not {kept}")
        super().__init__(communicator)
        self.kept, self.decay = kept, decay

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """An all-gather of places and coefficients."""
        momenta = []
        for known, gradient in zip(self.calls[number], gradients, strict=True):
            momenta.append(self.residuals[known.name].mul_(self.decay).add_(gradient.flatten()))
        pieces = torch.cat([pad(m, (0, -len(m) % PIECE)).view(-1, PIECE) for m in momenta])
        transform = cosines(PIECE, pieces.dtype, pieces.device)
        coefficients = pieces @ transform.T
        places = coefficients.abs().topk(self.kept, dim=1).indices
        values = coefficients.gather(1, places).to(COEFFICIENT)
        message = torch.cat([values.view(torch.uint8).flatten(), places.to(PLACE).flatten()])
        everyone = message.new_empty(self.communicator.size(), message.numel())
        self.communicator.start_all_gather(message, everyone.view(-1))()
        whole = torch.zeros_like(coefficients)
        for said in everyone:
            what, where = said.tensor_split([values.nbytes])
            whole.scatter_add_(
                1, where.view_as(places).long(), what.clone().view(COEFFICIENT).view_as(values).to(whole.dtype)
            )
        sent = torch.zeros_like(coefficients).scatter_(1, places, values.to(whole.dtype)) @ transform
        summed, counts = whole @ transform, [ceil(m.numel() / PIECE) for m in momenta]
        for m, gradient, mine, total in zip(momenta, gradients, sent.split(counts), summed.split(counts), strict=True):
            m.sub_(mine.flatten()[: m.numel()])
            gradient.copy_(total.flatten()[: m.numel()].sign().view_as(gradient))

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """Every message goes to all others, around a ring."""
        pieces = sum(ceil(known.shape.numel() / PIECE) for call in self.calls for known in call)
        return (n - 1) * pieces * self.kept * (PLACE.itemsize + COEFFICIENT.itemsize)

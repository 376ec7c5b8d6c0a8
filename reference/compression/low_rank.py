"""PowerSGD: a gradient as a product of two thin matrices, found by one step of subspace iteration.

This is `plain_memory.power_step` with: real ranks, many matrices at once, and gradients too small to gain from it.

    P = M Q           all-reduce: that of the sum of all ranks' matrices, since products add up       A R numbers
    orthogonalise P   each rank by itself, all alike
    Q = M^T P         all-reduce; it is also where the next step begins (warm start)                  B R numbers
    P Q^T             is the sum, but for what is orthogonal to P; each rank keeps what it had of that

for matrices M [A, B] of gradients and residuals. It is linear: n ranks compute what one process would that has the sum
of their gradients, and bytes do not grow with n. Of a stack of experts [E, A, B] each is a matrix of its own. Where
R (A + B) is not less than A B, and for vectors, the gradient itself travels, in the same message as P.

Where all of M is orthogonal to a column of Q, as where M is zero, P and the next Q would have a column of zeros, and
that would be so in all later steps: such a column of Q begins anew, from the values that it had first.

Vogels et al. 2019, "PowerSGD: practical low-rank gradient compression" (arXiv:1905.13727).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.data_parallel.remembered import About, Remembered
from reference.errors import BadInput

from .memory import Compressor, Known, all_reduce_bytes, generator_of, spread
from .plain_memory import orthogonalise


class MatricesOfShape(NamedTuple):
    """Gradients of one call that are matrices of one shape."""

    places: list[int]  # in the call
    names: list[str]
    shapes: list[torch.Size]  # as the gradients have them
    wanted: Tensor  # [m, A, B]: residuals; in a step, gradients are added
    q: Tensor  # [m, B, R]
    first_q: Tensor

    def each(self, tensors: Tensor) -> list[Tensor]:
        """Of [m, ...]: a view for each gradient; a stack of experts has several."""
        counts = [matrix_shape(shape)[0] for shape in self.shapes]
        return [*tensors.split(counts)]


class PowerSGD(Compressor):
    """Sums of gradients of rank R, with error feedback and warm start.

    Args:
        communicator: n ranks.
        rank: R.
        seed: of the first Q, the same on all ranks.

    Raises:
        BadInput: for a rank below 1.
    """

    def __init__(self, communicator: Communicator, rank: int, seed: int = 0) -> None:
        if rank < 1:
            raise BadInput(f"PowerSGD approximates by a rank of 1 or more, not {rank}")
        super().__init__(communicator)
        self.rank, self.seed = rank, seed
        self.matrices: list[list[MatricesOfShape]] = []  # of each call, by shape
        self.small: list[list[int]] = []  # of each call, places of gradients that travel as they are

    def prepare(self, call: Sequence[Known]) -> None:
        """Room for residuals, and the first Q."""
        large = [place for place, known in enumerate(call) if self.gains(known.shape)]
        self.small.append([place for place in range(len(call)) if place not in large])

        def kind(place: int) -> tuple:
            return (*matrix_shape(call[place].shape)[1:], str(call[place].dtype))

        found = []
        for _, places in groupby(sorted(large, key=kind), kind):
            found.append(self._room([*places], call))
        self.matrices.append(found)

    def _room(self, places: list[int], call: Sequence[Known]) -> MatricesOfShape:
        of = [call[place] for place in places]
        shapes = [matrix_shape(known.shape) for known in of]
        q = torch.cat([self._first_q(known, *shape) for known, shape in zip(of, shapes, strict=True)])
        m, (_, a, b) = sum(count for count, *_ in shapes), shapes[0]
        wanted = torch.zeros(m, a, b, dtype=of[0].dtype, device=of[0].device)
        return MatricesOfShape(places, [k.name for k in of], [k.shape for k in of], wanted, q, q.clone())

    def _first_q(self, known: Known, count: int, _: int, b: int) -> Tensor:
        values = torch.randn(count, b, self.rank, generator=generator_of(self.seed, known.name), dtype=torch.float64)
        return values.to(known.device, known.dtype)

    def gains(self, shape: torch.Size) -> bool:
        """Whether a gradient of this shape is sent as two thin matrices."""
        if len(shape) < 2:
            return False
        _, a, b = matrix_shape(shape)
        return self.rank * (a + b) < a * b

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Two all-reduces: of P and all that is small, and of Q."""
        matrices, small = self.matrices[number], [gradients[place] for place in self.small[number]]
        for of in matrices:
            for place, wanted in zip(of.places, of.each(of.wanted), strict=True):
                wanted.add_(gradients[place].view_as(wanted))
        ps = [of.wanted @ of.q for of in matrices]
        self._all_reduce([*ps, *small])
        for p in ps:
            orthogonalise(p)
        own = [of.wanted.mT @ p for of, p in zip(matrices, ps, strict=True)]
        for of, q in zip(matrices, own, strict=True):
            of.q.copy_(q)
        self._all_reduce([of.q for of in matrices])
        for of, p, q in zip(matrices, ps, own, strict=True):
            of.wanted.baddbmm_(p, q.mT, alpha=-1)  # what this rank did not bring to the sum
            for place, here, there in zip(of.places, of.each(p), of.each(of.q), strict=True):
                found = gradients[place].view(len(here), here.shape[1], there.shape[1])
                torch.bmm(here, there.mT, out=found)  # where it belongs, and not through a copy of all of them
            vanished = (of.q == 0).all(dim=1, keepdim=True)
            of.q.copy_(torch.where(vanished, of.first_q, of.q))

    def _all_reduce(self, tensors: Sequence[Tensor]) -> None:
        if tensors:
            whole = torch.cat([tensor.flatten() for tensor in tensors])
            self.communicator.start_all_reduce(whole)()
            spread(whole, tensors)

    def remembered(self) -> list[Remembered]:
        """Residuals, of each rank its own; and Q, which all have."""
        found, mine = [], {"holder": self.communicator.rank(), "holders": self.communicator.size()}
        for of in (of for call in self.matrices for of in call):
            for name, shape, wanted, q in zip(of.names, of.shapes, of.each(of.wanted), of.each(of.q), strict=True):
                found.append(Remembered.of("residual", name, wanted.view(-1), shape, **mine))
                found.append(Remembered.of(f"Q of rank {self.rank}", name, q, about=About.BLOCK))
        return found

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """Two all-reduces for each call."""
        total = 0
        for call, matrices, small in zip(self.calls, self.matrices, self.small, strict=True):
            first = sum(of.wanted.shape[0] * of.wanted.shape[1] * self.rank for of in matrices)
            first += sum(call[place].shape.numel() for place in small)
            second = sum(of.q.numel() for of in matrices)
            total += sum(all_reduce_bytes(rank, n, length, itemsize) for length in (first, second))
        return total


def matrix_shape(shape: torch.Size) -> tuple[int, int, int]:
    """How many matrices a gradient is seen as, and their shape: one of rows, but for a stack of experts [E, A, B]."""
    if len(shape) == 3:
        return tuple(shape)
    return 1, shape[0], shape.numel() // max(1, shape[0])

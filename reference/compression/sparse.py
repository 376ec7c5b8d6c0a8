"""Few elements of each gradient: the largest, or some that all ranks choose alike.

| compressor | a rank sends, for k elements of each gradient                   | the sum has           |
|------------|------------------------------------------------------------------|-----------------------|
| `TopK`     | (n - 1) k (4 + b) bytes: every rank needs everyone's places      | up to n k elements    |
| `RandomK`  | 2 (n - 1)/n k b bytes: a shared seed says where, and nothing is sent of it | k elements  |

with b bytes for a number. A place costs as much as a number: with the places, 1 % of the elements are 2 % of the bytes;
and since ranks choose different ones, they cannot be added up on the way: bytes grow with n.

Stich et al. 2018, "Sparsified SGD with memory" (arXiv:1809.07599); Aji and Heafield 2017 (arXiv:1704.05021).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.data_parallel.remembered import About, Remembered
from reference.errors import BadInput

from .memory import Known, WithResiduals, all_reduce_bytes, generator_of, spread

PLACE = torch.int32


class FewElements(WithResiduals):
    """What both have in common.

    Args:
        communicator: n ranks.
        share: of the elements of each gradient that a rank sends; at least one is sent.

    Raises:
        BadInput: for a share that is none.
    """

    def __init__(self, communicator: Communicator, share: float) -> None:
        if not 0 < share <= 1:
            raise BadInput(f"a share of the elements is more than 0 and at most 1, not {share}")
        super().__init__(communicator)
        self.share = share

    def count(self, known: Known) -> int:
        """How many elements of a gradient are sent: k."""
        return min(known.shape.numel(), max(1, round(self.share * known.shape.numel())))

    def counts(self, number: int) -> list[int]:
        """The same of each gradient of a call."""
        return [self.count(known) for known in self.calls[number]]


class TopK(FewElements):
    """Each rank sends its largest elements, with their places."""

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """An all-gather of places and values; each rank adds up what all have sent."""
        n, counts = self.communicator.size(), self.counts(number)
        places, values = [], []
        for wanted, k in zip(self.wanted(number, gradients), counts, strict=True):
            found = wanted.abs().topk(k, sorted=False).indices
            places.append(found)
            values.append(wanted[found])
            wanted[found] = 0  # it has been sent: what is left is the residual
        message = torch.cat([torch.cat(places).to(PLACE).view(torch.uint8), torch.cat(values).view(torch.uint8)])
        everyone = message.new_empty(n, message.numel())
        self.communicator.start_all_gather(message, everyone.view(-1))()
        for gradient in gradients:
            gradient.zero_()
        for said in everyone:  # places of one rank differ: no order of additions is left to chance
            where, what = said.tensor_split([sum(counts) * PLACE.itemsize])
            at, x = where.clone().view(PLACE).long(), what.clone().view(values[0].dtype)
            for gradient, here, found in zip(gradients, at.split(counts), x.split(counts), strict=True):
                gradient.view(-1)[here] += found

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """Every message goes to all others, around a ring."""
        return (n - 1) * sum(k * (PLACE.itemsize + itemsize) for i in range(len(self.calls)) for k in self.counts(i))


class RandomK(FewElements):
    """All ranks send the same elements, others in each step: they are chosen by a seed, the step and the name.

    Args:
        communicator, share: as for `FewElements`.
        seed: the same on all ranks.
    """

    def __init__(self, communicator: Communicator, share: float, seed: int = 0) -> None:
        super().__init__(communicator, share)
        self.seed = seed
        self.taken: dict[str, Tensor] = {}  # how many sums of each gradient have been made: [1]

    def prepare(self, call: Sequence[Known]) -> None:
        super().prepare(call)
        self.taken.update({known.name: torch.zeros(1, dtype=torch.int64) for known in call})

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """An all-reduce of what was chosen."""
        places, values = [], []
        for known, wanted in zip(self.calls[number], self.wanted(number, gradients), strict=True):
            places.append(self.places(known).to(wanted.device))
            values.append(wanted[places[-1]])
            wanted[places[-1]] = 0
            self.taken[known.name] += 1
        message = torch.cat(values)
        self.communicator.start_all_reduce(message)()
        spread(message, values)
        for gradient, at, x in zip(gradients, places, values, strict=True):
            gradient.zero_().view(-1)[at] = x

    def places(self, known: Known) -> Tensor:
        """Which elements of a gradient are sent in this step."""
        generator = generator_of(self.seed, int(self.taken[known.name]), known.name)
        return torch.randperm(known.shape.numel(), generator=generator)[: self.count(known)]

    def remembered(self) -> list[Remembered]:
        """How many steps there were, too: a run that resumes takes other elements than one that begins."""
        taken = [Remembered.of("taken", name, count, about=About.PARAMETER) for name, count in self.taken.items()]
        return super().remembered() + taken

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """An all-reduce of the chosen elements of each call."""
        return sum(all_reduce_bytes(rank, n, sum(self.counts(i)), itemsize) for i in range(len(self.calls)))

"""Sums that are checked: a bit that flips while gradients are added up is found, and in a ring the rank is named.

This is `plain_votes.sum_with_checksum` with: any communicator and reduce-scatter, a bound on what rounding may change,
and a ring whose messages carry their checksums.

The sum of all elements of a sum is the sum of the sums of its parts. So a rank adds up what it brings, all ranks add up
these numbers, and a rank that has the result adds it up, too (Huang & Abraham 1984, "Algorithm-based fault tolerance
for matrix operations").

| class         | sent besides, by a rank         | finds               | names                               |
|---------------|---------------------------------|---------------------|-------------------------------------|
| `Checked`     | 16 bytes in an all-reduce; or   | a wrong sum         | no rank: a flip in a part of it is  |
|               | 16 n in a reduce-scatter        |                     | in the result of all                |
| `CheckedRing` | 16 bytes in each of its 2(n-1)  | a wrong partial sum | the rank that made it or sent it    |
|               | messages                        |                     |                                     |

What both cannot see: a change that is no larger than rounding, such as that of the last bits of a mantissa; and a
gradient that was wrong before it was summed, whose checksum is wrong with it. See `audits` for that.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import ByHand, Communicator, Finish
from reference.collectives.exchange import exchange
from reference.collectives.reduction import SUM
from reference.collectives.relay import Relay

TAIL = 16  # bytes of a checksum: a sum and a magnitude, in float64


@dataclass(frozen=True)
class WrongSum:
    """A sum that is not the sum of its parts.

    Attributes:
        number: of the reduction, counted from 0 on this rank.
        off: by how much.
        rank: of the group, that made it; None where that is not known.
    """

    number: int
    off: float
    rank: int | None = None


def checksum(x: Tensor) -> Tensor:
    """The sum of all elements and that of their magnitudes: [2] in float64."""
    wide = x.detach().double()
    return torch.stack([wide.sum(), wide.abs().sum()])


def off_by(x: Tensor, expected: Tensor, additions: int) -> float | None:
    """By how much a sum differs from its checksum, where that is more than rounding may change; else None.

    Each of k additions rounds an element by at most half of eps of what its parts come to, and adding up m elements in
    float64 loses at most about log2 m bits.

    Args:
        x: a sum.
        expected: [2], the sum of its parts' checksums. One that is not finite says nothing: see `together`.
        additions: how many parts there are.
    """
    total, magnitude = expected.tolist()
    if not expected.isfinite().all():
        return None
    wide = torch.finfo(torch.float64).eps * x.numel().bit_length()
    off = (x.double().sum() - total).abs().item()
    return None if off <= (additions * torch.finfo(x.dtype).eps + wide) * magnitude else off


class Checked(Relay):
    """Another communicator, whose sums are checked. Hand it to a `Training` as `communicate=Checked`.

    Args:
        group: n ranks, or the other communicator.

    Attributes:
        wrong: sums that this rank has found wrong. Others may have found others: of a reduce-scatter each looks at its
            own chunk.
    """

    def __init__(self, group: ProcessGroup | Communicator) -> None:
        super().__init__(group)
        self.wrong: list[WrongSum] = []
        self._reductions = 0

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self.start_all_reduce(x, op)()

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        sums = torch.cat([checksum(chunk) for chunk in x.view(-1).tensor_split(self.size())])
        expected = sums.new_empty(2)
        self.inner.reduce_scatter(sums, expected)
        self.inner.reduce_scatter(x, out)
        self._check(out, expected)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        if op != SUM or not x.is_floating_point():
            return self.inner.start_all_reduce(x, op)
        return self._checked(self.inner.start_all_reduce(checksum(x)), self.inner.start_all_reduce(x))

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        sums = torch.cat([checksum(chunk) for chunk in x.view(-1).tensor_split(self.size())])
        expected = self.inner.start_reduce_scatter(sums, sums.new_empty(2))
        return self._checked(expected, self.inner.start_reduce_scatter(x, out))

    def _checked(self, sums: Finish, result: Finish) -> Finish:
        def finish() -> Tensor:
            expected, x = sums(), result()
            self._check(x, expected)
            return x

        return finish

    def _check(self, x: Tensor, expected: Tensor) -> None:
        if (off := off_by(x, expected, self.size())) is not None:
            self.wrong.append(WrongSum(self._reductions, off))
        self._reductions += 1


class CheckedRing(ByHand):
    """All-reduce around a ring, where each message of a sum carries the checksum that it should have.

    A rank looks at what it receives before it adds to it. If that does not fit its checksum, the rank before has added
    up wrongly, or has not kept or sent what it had: for what that one received did fit. (Or this rank has received it
    wrongly: the link and the two ends of it are one suspect.) A checksum is never made of a sum: parts' are added up.

    Args:
        group: n ranks.

    Attributes:
        wrong: what this rank says of the one before it; see `accused`.
    """

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(group)
        self.wrong: list[WrongSum] = []
        self._reductions = 0

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        if op != SUM or not x.is_floating_point():
            super().all_reduce(x, op)
        else:
            self._ring(x)

    def add(self, chunk: Tensor, received: Tensor) -> None:
        """Add up, in place: what a broken processor does wrong."""
        chunk += received

    def accused(self) -> list[int]:
        """The ranks of the group that any rank has found wrong; the same on every rank, all of which call this.

        An all-reduce of n numbers.
        """
        votes = torch.zeros(self.size(), dtype=torch.int64)
        for each in self.wrong:
            votes[each.rank] = 1
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group)
        return votes.nonzero().flatten().tolist()

    def _ring(self, x: Tensor) -> None:
        rank, n = self.rank(), self.size()
        right = (rank + 1) % n
        chunks = x.view(-1).tensor_split(n)
        own = torch.stack([checksum(chunk) for chunk in chunks])
        told = own.clone()
        for step in range(n - 1):
            out, into = (rank - step) % n, (rank - step - 1) % n
            received = self._pass(chunks[out], told[out], chunks[into], told[into])
            self.add(chunks[into], received)
            told[into] += own[into]
        for step in range(n - 1):
            out, into = (right - step) % n, (rank - step) % n
            chunks[into].copy_(self._pass(chunks[out], told[out], chunks[into], told[into]))
        self._reductions += 1

    def _pass(self, outgoing: Tensor, checksum_of_it: Tensor, like: Tensor, told: Tensor) -> Tensor:
        """Send a chunk to the right and receive one from the left, each with its checksum; look at what has come."""
        n, left = self.size(), (self.rank() - 1) % self.size()
        message = torch.cat([outgoing.view(torch.uint8), checksum_of_it.view(torch.uint8)])
        incoming = message.new_empty(like.nbytes + TAIL)
        exchange(message, (self.rank() + 1) % n, incoming, left, self.group)
        received = incoming[: like.nbytes].clone().view(like.dtype)
        told.copy_(incoming[like.nbytes :].clone().view(torch.float64))
        if (off := off_by(received, told, n)) is not None:
            self.wrong.append(WrongSum(self._reductions, off, left))
            told.copy_(checksum(received))  # the next rank shall not accuse this one
        return received

"""Audits: from time to time another rank computes a rank's gradient again, and the rank that has it wrong is named.

A gradient that is wrong before it is summed is wrong in the sum, on all ranks alike: no vote and no checksum sees it.
But a batch is a function of the step and the rank, and all ranks have the weights. So in an audited step each rank
first computes what its neighbour is to compute, and then its own; what either brings to the sums must be the same, bit
by bit, on processors of one kind:

                    first, for the neighbour     then, its own
    rank 0          gradient of rank 2           gradient of rank 0
    rank 1          gradient of rank 0           gradient of rank 1
    rank 2          gradient of rank 1           gradient of rank 2

If all agree, the step is complete, and took twice its time. If not, a third opinion decides, and the step is to be left
out. A rank that computes wrongly each time is outvoted on its own gradient and on its neighbour's, one that did so once
on one of them. On two ranks the third opinion is one of the two again: that tells which of two was wrong once, and not
which is wrong each time; then both are named, and it is said.

Nothing of a form of data parallelism is known here: what a rank brings to a sum passes through its communicator.

| step             | computes and sends | besides, sent by a rank, n ranks that read different windows |
|------------------|--------------------|--------------------------------------------------------------|
| not audited      | 1                  | nothing                                                      |
| audited          | 2 times            | 16 (n-1) bytes                                               |
| and found wrong  | 3 times            | 8 (n-1) bytes more                                           |

Recomputation on another core is how Dixit et al. 2021, "Silent data corruptions at scale", test in production.
"""

from dataclasses import dataclass, field, fields

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.compat import all_gather_single
from reference.collectives.reduction import SUM
from reference.collectives.relay import Relay
from reference.data_parallel.initial import fingerprint
from reference.errors import BadInput
from reference.models.data import Batches
from reference.train import Training

from .plain_votes import outvoted
from .votes import Suspicion, digest


@dataclass(frozen=True, eq=False)
class Passed(Batches):
    """The same batches, each part read by another rank: rank r reads what rank r - `by` would read."""

    by: int = 0

    @classmethod
    def from_batches(cls, batches: Batches, by: int) -> "Passed":
        """Pass on the parts of these."""
        return cls(**{each.name: getattr(batches, each.name) for each in fields(Batches)}, by=by)

    def of_step(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        return super().of_step(step, (rank - self.by) % world_size, world_size)

    def dropout_seeds(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        return super().dropout_seeds(step, (rank - self.by) % world_size, world_size)


@dataclass
class Brought:
    """What a rank brings to sums of gradients, in order, as fingerprints. Its `over` is a training's `communicate`.

    Where shards are summed, and then these sums over replicas, what it brings to the first sums is its own alone.
    """

    scattered: list[int] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)

    def over(self, group: ProcessGroup | Communicator) -> "Listening":
        """A communicator that tells this of what is summed."""
        return Listening(group, self)

    def take(self) -> int:
        """64 bits of all that was brought since, and forget it."""
        found = digest(dict(enumerate(self.scattered or self.reduced)))
        self.forget()
        return found

    def forget(self) -> None:
        """A step begins."""
        self.scattered.clear()
        self.reduced.clear()


class Listening(Relay):
    """Another communicator, and a look at what this rank brings to its sums."""

    def __init__(self, group: ProcessGroup | Communicator, brought: Brought) -> None:
        super().__init__(group)
        self.brought = brought

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self.brought.reduced.append(int(fingerprint(x)))
        super().all_reduce(x, op)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self.brought.scattered.append(int(fingerprint(x)))
        super().reduce_scatter(x, out)

    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> Finish:
        self.brought.reduced.append(int(fingerprint(x)))
        return super().start_all_reduce(x, op)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        self.brought.scattered.append(int(fingerprint(x)))
        return super().start_reduce_scatter(x, out)


class Audits:
    """Audits of a training whose only axes are those of data parallelism.

        brought = Brought()
        training = Training(..., communicate=brought.over)
        audits = Audits(training, brought)
        loss, suspicions = audits.backward(step)     in the place of training.backward(step), every so many steps

    Args:
        training: all of whose ranks make one.
        brought: what it communicates through.

    Raises:
        BadInput: for a training with one rank, or with other axes, where other ranks have a part in each gradient; and
            for compressed gradients, of which a rank keeps what it has not sent.
    """

    def __init__(self, training: Training, brought: Brought) -> None:
        n = training.group.size()
        if training.data.size() != n or n < 2 or training.config.model.experts:
            raise BadInput("an audit takes 2 or more ranks that all have the whole model, shared out at most by FSDP")
        if training.config.is_compressed:
            raise BadInput(
                "an audit computes gradients again, and what is left of compressed ones would be counted twice: leave "
                "out --compress, and --optimizer one-bit-adam"
            )
        self.training, self.brought = training, brought

    def backward(self, step: int) -> tuple[Tensor, list[Suspicion]]:
        """Forward and backward of a step, and who has computed wrongly: the same on every rank. All ranks call this.

        Returns:
            The loss, as `Training.backward`, and what was found. If anything was, the gradients are of no use: leave
            the step out with `form.end_step()`, or take it again.
        """
        self.brought.forget()
        first = self._of_others(step, turn=1)
        loss, mine = self._brought_by(step)
        own = self._told(mine)
        n = self.training.group.size()
        if all(first[(rank + 1) % n] == own[rank] for rank in range(n)):
            return loss, []
        self.training.form.end_step()
        third = self._of_others(step, turn=2)
        wrong = set()
        for rank in range(n):
            who = [(rank + 1) % n, rank, (rank + 2) % n]
            places, _ = outvoted([first[who[0]], own[rank], third[who[2]]])
            wrong |= {who[place] for place in places}
        ranks = tuple(sorted(wrong))
        return loss, [Suspicion(f"gradient of step {step}", ranks, certain=len(ranks) == 1)]

    def _of_others(self, step: int, turn: int) -> list[int]:
        """What each rank brings in the place of another one, `turn` neighbours before it."""
        own = self.training.batches
        self.training.batches = Passed.from_batches(own, turn * self.training.plan.micro_batches)
        try:
            _, found = self._brought_by(step)
        finally:
            self.training.batches = own
        self.training.form.end_step()
        return self._told(found)

    def _brought_by(self, step: int) -> tuple[Tensor, int]:
        loss = self.training.backward(step)
        return loss, self.brought.take()

    def _told(self, mine: int) -> list[int]:
        """What all ranks say, by rank."""
        group = self.training.group
        told = torch.tensor([mine], device=self.training.device)
        everyones = told.new_empty(group.size())
        all_gather_single(everyones, told, group=group)
        return everyones.tolist()

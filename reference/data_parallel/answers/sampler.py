"""Which samples each rank reads: every sample once in an epoch, whatever the number of ranks.

An epoch is one shuffle of the data set, the same on every rank, and a step takes the next `batch` samples of it. Ranks
share those of a step, never the data set: so what is read in step s does not depend on which rank reads it, and one
number, how many samples all ranks have read, says where to resume, on as many ranks as there then are.

    order of the epoch   7 2 9 4 1 | 0 5 8 3 6 | 11 10        12 samples, 5 in a step
    2 ranks              7 2 9|4 1   0 5 8|3 6   11|10
    3 ranks              7 2|9 4|1   0 5|8 3|6   11|10|       in the last step, rank 2 has nothing
    2, then 3 ranks      7 2 9|4 1   0 5|8 3|6   11|10|       nothing is lost, nothing is read twice

Where n does not divide, the first ranks have one sample more, as with `Tensor.tensor_split`. No sample is left out or
repeated to make the shares alike, so sums must be divided by what all ranks have (`uneven.py`). For equal shares, take
a batch that n divides, and end an epoch after samples // batch steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.errors import BadInput
from reference.models.data import order


def share(batch: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's rows of a batch that every rank has: the r-th of n consecutive parts, as a view.

    Args:
        batch: [B, ...]. The first B mod n ranks get a row more than the others; with B < n, some get none.
        group: n ranks. Any n.
    """
    return batch.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]


def places(samples: int, batch: int, step: int, rank: int, ranks: int) -> tuple[int, int]:
    """Where in an epoch's order `rank` reads in `step`: from place `begin` to before `end`.

    Args:
        samples: in an epoch.
        batch: samples of all ranks in a step. The last step of an epoch has what is left.
        step: of the epoch, counted from 0.
        rank: one of `ranks`. The first ones have one sample more where the batch does not divide.

    Returns:
        begin, end; the same number twice where this rank has nothing.
    """
    first = min(step * batch, samples)
    size, longer = divmod(min(batch, samples - first), ranks)
    begin = first + rank * size + min(rank, longer)
    return begin, begin + size + (rank < longer)


@dataclass(frozen=True)
class ShardedSampler:
    """The batches of one rank, to the end of an epoch: lists of indices, as a DataLoader's `batch_sampler`.

        sampler = ShardedSampler(len(data), batch=64, rank=rank, world_size=n)
        while training:
            for samples in DataLoader(data, batch_sampler=sampler): ...
            sampler = sampler.next_epoch()

    It never changes. To save it, keep `sampler.after(steps).consumed`; to resume, give that number as `consumed`, on
    any number of ranks and with any batch. A rank that has no share of an epoch's last step ends one step earlier than
    the others: see `uneven.joined`.

    Raises:
        BadInput: if there are more ranks than samples in a step, or a number makes no sense.
    """

    samples: int  # in the data set
    batch: int  # samples of all ranks in a step
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    consumed: int = 0  # samples that all ranks have read so far, in all epochs

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise BadInput(f"there is nothing to read in {self.samples} samples")
        if not 0 <= self.rank < self.world_size:
            raise BadInput(f"ranks of {self.world_size} are 0 to {self.world_size - 1}, not {self.rank}")
        if self.batch < self.world_size:
            raise BadInput(f"{self.batch} samples in a step leave some of {self.world_size} ranks without any, always")
        if self.consumed < 0 or self.seed < 0:
            raise BadInput(f"consumed and seed are 0 or more, not {self.consumed} and {self.seed}")

    @property
    def epoch(self) -> int:
        """Counted from 0."""
        return self.consumed // self.samples

    @property
    def steps(self) -> int:
        """Steps that are left in this epoch, for all ranks together."""
        return -(-self._left // self.batch)

    def __len__(self) -> int:
        """Batches that are left for this rank."""
        return sum(1 for _ in self._places())

    def __iter__(self) -> Iterator[list[int]]:
        """The indices that this rank reads, step by step."""
        rest = order(self.samples, self.seed, self.epoch)[self.samples - self._left :]
        for begin, end in self._places():
            yield rest[begin:end].tolist()

    def after(self, steps: int) -> Self:
        """What is left when all ranks have taken `steps` more steps, of this epoch and those that follow."""
        if steps < 0:
            raise BadInput(f"a sampler goes forward, by 0 steps or more, not by {steps}")
        sampler = self
        while steps >= sampler.steps:
            steps -= sampler.steps
            sampler = sampler.next_epoch()
        return replace(sampler, consumed=sampler.consumed + steps * self.batch)

    def next_epoch(self) -> Self:
        """The epoch after this one, from its beginning."""
        return replace(self, consumed=self.consumed + self._left)

    @property
    def _left(self) -> int:
        return self.samples - self.consumed % self.samples

    def _places(self) -> Iterator[tuple[int, int]]:
        """Where in what is left of the order this rank reads, where it reads anything."""
        for step in range(self.steps):
            begin, end = places(self._left, self.batch, step, self.rank, self.world_size)
            if begin < end:
                yield begin, end

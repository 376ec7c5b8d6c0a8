"""A form of data parallelism along a pipeline: each rank has the layers of its stages, and the form is over these.

Two things are left to do for this axis. A tied table is used at both ends: first and last stage have a copy of it, each
finds a part of its gradient, and both take the sum. And in the norm of all gradients every stage counts, the copy not.
"""

from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives import fastest
from reference.data_parallel.form import DataParallel
from reference.data_parallel.replicated import flat

TABLE = "embedding.weight"


class AlongPipeline:
    """A form over the stages of one rank.

    Args:
        form: over this rank's stages.
        group: the ranks of the pipeline.
        ends: the two ranks that have a copy of a tied table, where this is one of them.
    """

    def __init__(self, form: DataParallel, group: ProcessGroup, ends: ProcessGroup | None = None) -> None:
        self._form, self._ends = form, ends
        copy = ends is not None and ends.rank() > 0
        self.parts = tuple(replace(part, counts=False) if copy and part.name == TABLE else part for part in form.parts)
        self.shards = (*form.shards, group)

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        """As of the form."""
        return self._form.micro_batch(last)

    def collect(self) -> None:
        """Sum over the data axis, and the table's gradient over both ends."""
        self._form.collect()
        if self._ends is not None:
            flat([part.master.grad for part in self.parts if part.name == TABLE], self._ends, fastest.all_reduce)

    def publish(self) -> None:
        """As of the form."""
        self._form.publish()

    def gradients(self) -> list[Tensor]:
        """As of the form."""
        return self._form.gradients()

"""A form of data parallelism along a pipeline: each rank has the layers of its stages, and the form is over these.

Two things are left to do for this axis. A tied table is used at both ends: first and last stage have a copy of it, each
finds a part of its gradient, and both take the sum. And in the norm of all gradients every stage counts, the copy not.
"""

from dataclasses import replace

from torch.distributed import ProcessGroup

from reference.collectives import fastest
from reference.data_parallel.form import Around, DataParallel
from reference.data_parallel.replicated import flat

TABLE = "embedding.weight"


class AlongPipeline(Around):
    """A form over the stages of one rank.

    Args:
        form: over this rank's stages.
        group: the ranks of the pipeline.
        ends: the two ranks that have a copy of a tied table, where this is one of them.
    """

    def __init__(self, form: DataParallel, group: ProcessGroup, ends: ProcessGroup | None = None) -> None:
        super().__init__(form)
        self._ends = ends
        copy = ends is not None and ends.rank() > 0
        self.parts = tuple(replace(part, counts=False) if copy and part.name == TABLE else part for part in form.parts)
        self.shards = (*form.shards, group)

    def collect(self) -> None:
        """Sum over the data axis, and the table's gradient over both ends."""
        super().collect()
        if self._ends is not None:
            flat([part.master.grad for part in self.parts if part.name == TABLE], self._ends, fastest.all_reduce)

"""Data parallelism of a pipeline: a form for each stage, since stages end their backward at different times.

Two things are left to do along the pipe. A tied table is used at both ends: it has a form of its own, so ranks cut it
alike wherever it is; first and last stage each find a part of its gradient, and both take the sum. And in the norm of
all gradients every stage counts, and the table once.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives import fastest
from reference.data_parallel.form import DataParallel
from reference.data_parallel.replicated import flat


class AlongPipeline:
    """The forms of one rank's stages. For an optimizer it is an `UpdateForm`, for a pipeline a `StageForm`.

    Args:
        forms: over each of this rank's stages, by number.
        group: the ranks of the pipeline.
        table: the form over a tied table, where this rank has it.
        ends: the two ranks that have it, where this is one of them. None between them, and where one rank is both.
    """

    def __init__(
        self,
        forms: Mapping[int, DataParallel],
        group: ProcessGroup,
        table: DataParallel | None = None,
        ends: ProcessGroup | None = None,
    ) -> None:
        self._of_stage, self._table, self._ends = forms, table, ends
        self._all = [*forms.values(), *([table] if table else [])]
        own = tuple(part for form in forms.values() for part in form.parts)
        first = ends is None or ends.rank() == 0
        shared = tuple(replace(part, counts=part.counts and first) for part in table.parts) if table else ()
        self.parts = (*shared, *own)
        self.shards = (*next(iter(forms.values())).shards, group)
        self.units = [unit for form in self._all for unit in form.units]
        self.shards_parameters = bool(self.units)

    def backward_of(self, stage: int, last: bool) -> AbstractContextManager[None]:
        """As of the stage's form."""
        return self._of_stage[stage].micro_batch(last)

    def gather(self, stage: int) -> None:
        """Make a stage whole, and the table, which stays so until the step is over."""
        if self._table:
            self._table.hold()
            self._table.wait()
        self._of_stage[stage].hold()

    def free(self, stage: int) -> None:
        """Keep the stage's shards alone."""
        self._of_stage[stage].release()

    def collect(self) -> None:
        """Sum over the data axis, and the table's gradient over both ends."""
        if self._table:
            with self._table.micro_batch(last=True):
                pass  # both stages are through with it: let its gradient go
        for form in self._all:
            form.collect()
        if self._ends is not None:
            self._sum_over_ends()

    def publish(self) -> None:
        """As of the forms."""
        for form in self._all:
            form.publish()

    def gradients(self) -> list[Tensor]:
        """As of the forms."""
        return [gradient for form in self._all for gradient in form.gradients()]

    def _sum_over_ends(self) -> None:
        found = [part.master.grad for part in self._table.parts]
        if found:
            flat(found, self._ends, fastest.all_reduce)

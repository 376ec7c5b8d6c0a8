"""Data parallelism of a pipeline: a form for each stage, since stages end their backward at different times.

A tied table is used at both ends: it has a form of its own, so ranks cut it alike wherever it is. First and last stage
each find a part of its gradient: that both take the sum, and that it counts once, its spec says (`reference.on_mesh`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from torch import Tensor

from reference.data_parallel.gradient_sync import DataParallel
from reference.data_parallel.remembered import Remembered


class PerStageSync:
    """The forms of one rank's stages. For an optimizer it is an `GradientSync`, for a pipeline a `StageSync`.

    Args:
        forms: over each of this rank's stages, by number.
        table: the form over a tied table, where this rank has it.
    """

    def __init__(self, forms: Mapping[int, DataParallel], table: DataParallel | None = None) -> None:
        self._of_stage, self._table = forms, table
        self._all = [*([table] if table else []), *forms.values()]
        self.parts = tuple(part for form in self._all for part in form.parts)
        self.shard_groups = self._all[0].shard_groups if self._all else ()
        self.units = [unit for form in self._all for unit in form.units]
        self.shards_parameters = bool(self.units)
        self._begin_step()

    @property
    def remembered(self) -> list[Remembered]:
        """Delegates to the forms of all stages."""
        return [each for form in self._all for each in form.remembered]

    def backward_of(self, stage: int, last: bool) -> AbstractContextManager[None]:
        """Around the backward of a stage: the micro-batch of its own form. A stage without parameters has none."""
        return self._of_stage[stage].micro_batch(last) if stage in self._of_stage else nullcontext()

    def gather(self, stage: int) -> None:
        """Begin to make a stage whole, and the table, which stays so until the step is over."""
        for form in (self._table, self._of_stage.get(stage)):
            if form:
                form.unshard(form.units)

    def free(self, stage: int) -> None:
        """Keep the stage's shards alone."""
        if stage in self._of_stage:
            self._of_stage[stage].reshard()

    def reduce_gradients(self) -> None:
        """Sum over the ranks of the forms."""
        if self._table:
            with self._table.micro_batch(last=True):
                pass  # both stages have finished with it: let its gradient go
        for form in self._all:
            form.reduce_gradients()

    def end_step(self) -> None:
        """Delegates to the forms of all stages."""
        for form in self._all:
            form.end_step()
        self._begin_step()

    def gradients(self) -> list[Tensor]:
        """Delegates to the forms of all stages."""
        return [gradient for form in self._all for gradient in form.gradients()]

    def _begin_step(self) -> None:
        """Gradients come outside of `backward_of`, too: of the table, and where backward is in halves."""
        for form in self._all:
            form.begin_step()


class SyncOfAll:
    """What the stages of a pipeline ask of one form or several, such as that of experts and that of all else.

    Args:
        syncs: over different parameters of the same stages.
    """

    def __init__(self, syncs: Sequence[PerStageSync]) -> None:
        self._syncs = syncs
        self.shards_parameters = any(sync.shards_parameters for sync in syncs)

    @contextmanager
    def backward_of(self, stage: int, last: bool) -> Iterator[None]:
        """Delegates to all."""
        with ExitStack() as inside:
            for sync in self._syncs:
                inside.enter_context(sync.backward_of(stage, last))
            yield

    def gather(self, stage: int) -> None:
        """Delegates to all."""
        for sync in self._syncs:
            sync.gather(stage)

    def free(self, stage: int) -> None:
        """Delegates to all."""
        for sync in self._syncs:
            sync.free(stage)

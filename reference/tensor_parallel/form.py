"""Data parallelism over a model that is split by tensor parallelism: two axes of ranks, and one form in front of both.

Each rank's model has parameters of its own size, and any form of data parallelism shares out *their* gradients and
updates among the ranks that have the same blocks. Two things are left to do for the other axis:

    sum         where ranks of the tensor axis hold copies of a parameter and see other work with it, each has a part
                of its gradient: key-value heads that several ranks share; norms, where each rank has other tokens
    count       in the norm of all gradients, a parameter with copies counts once
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives import fastest
from reference.data_parallel.form import Part, UpdateForm
from reference.data_parallel.replicated import flat

from .layout import Placement


class TwoAxes:
    """A form of data parallelism on one axis, of a model that is split over another.

    Args:
        form: over this rank's blocks of the parameters.
        placed: where these blocks are.
        group: the t ranks of the tensor axis.
        partial: for each parameter's name, the ranks whose gradients of it add up, if any.
    """

    def __init__(
        self,
        form: UpdateForm,
        placed: Mapping[str, Placement],
        group: ProcessGroup,
        partial: Mapping[str, ProcessGroup],
    ) -> None:
        self._form = form
        self.parts = tuple(_placed(part, placed[part.name]) for part in form.parts)
        self.shards, self.units = (*form.shards, group), form.units
        self.partial: dict[ProcessGroup, list[Part]] = {}  # parts whose gradients add up over these ranks
        for part in self.parts:
            if part.name in partial:
                self.partial.setdefault(partial[part.name], []).append(part)

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        """As of the form inside, where that is a `DataParallel`: a pipeline asks its own."""
        return self._form.micro_batch(last)

    def collect(self) -> None:
        """Sum over the data axis, and where ranks of the tensor axis have parts of a gradient, over these."""
        self._form.collect()
        for group, parts in self.partial.items():
            gradients = [part.master.grad for part in parts if part.master.grad is not None]
            if gradients:
                flat(gradients, group, fastest.all_reduce)

    def publish(self) -> None:
        """As of the form inside."""
        self._form.publish()

    def gradients(self) -> list[Tensor]:
        """As of the form inside."""
        return self._form.gradients()


def _placed(part: Part, where: Placement) -> Part:
    return replace(part, shape=where.shape, block=where.block, counts=part.counts and where.first)

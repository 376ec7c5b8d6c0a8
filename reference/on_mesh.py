"""Data parallelism in front of the other axes of a mesh: their part of a step follows from each parameter's spec.

A form of data parallelism shares out gradients and updates among ranks that hold the same blocks. Two things are left
to do along the other axes, and both stand in the specs (`reference.sharding`):

    sum     parts of a gradient, where ranks have replicas of a parameter and see other work with it
    count   in the norm of all gradients, replicas once

The sum comes after that of data parallelism, over masters alone: with ZeRO that is a shard of the bytes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import DataParallel, GradientSync, ParameterShard
from reference.data_parallel.remembered import Remembered
from reference.data_parallel.replicated import flat
from reference.groups import Groups
from reference.sharding import Placement


@dataclass(frozen=True)
class Along:
    """A form of data parallelism, and how its ranks are arranged.

    Attributes:
        form: over some of the parameters.
        shard_axes: along which ranks hold different parts; () for replicas.
        groups: of the mesh of its parameters' specs, where that is another view of the same ranks, as for experts.
    """

    form: GradientSync | DataParallel
    shard_axes: tuple[str, ...] = ()
    groups: Groups | None = None


class OnMesh:
    """Forms of data parallelism over blocks of parameters, as one form of the whole model.

    Args:
        forms: over this rank's parameters. Several where gradients are summed over different ranks, as with experts.
        placed: where this rank's blocks are, and their specs, by the parameter's name.
        groups: of the mesh; a form may have one of its own.
        split: all axes along which some rank's parameters are split, the same on every rank: the norm is summed over
            these. Those of `placed` and `forms` by default; a stage of a pipeline does not know them all.
    """

    def __init__(
        self,
        forms: Sequence[Along],
        placed: Mapping[str, Placement],
        groups: Groups,
        split: Collection[str] = (),
    ) -> None:
        self._forms = [along.form for along in forms]
        if any(along.groups for along in forms):  # axes of two views cross each other: take all ranks
            split = groups.mesh.names
        else:
            split = {*split, *(axis for where in placed.values() for axis in where.spec.split)}
            split.update(axis for along in forms for axis in along.shard_axes)
        self.split = tuple(name for name in groups.mesh.names if name in split)
        self.parts = tuple(
            self._placed(part, placed[part.name], along, groups) for along in forms for part in along.form.parts
        )
        self.shard_groups = tuple(groups.along(axis) for axis in self.split if groups.mesh.size(axis) > 1)
        self.units = [unit for form in self._forms for unit in form.units]
        self.partial: dict[Communicator, list[ParameterShard]] = {}  # parts whose gradients are summed over these ranks
        of = {part.name: along.groups or groups for along in forms for part in along.form.parts}
        self._seen: dict[str, list[Communicator]] = {}  # of each parameter: over which ranks parts of gradients add up
        for part in self.parts:
            self._seen[part.name] = partial_groups(placed[part.name], of[part.name])
            for communicator in self._seen[part.name]:
                self.partial.setdefault(communicator, []).append(part)

    @property
    def remembered(self) -> list[Remembered]:
        """What the forms remember, where the mesh has it."""
        return [self._remembered(each) for form in self._forms for each in form.remembered]

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch. A pipeline asks the forms of its stages instead."""
        with ExitStack() as inside:
            for form in self._forms:
                inside.enter_context(form.micro_batch(last))
            yield

    def reduce_gradients(self) -> None:
        """Sum over the data axes, and then the parts that ranks of other axes have."""
        for form in self._forms:
            form.reduce_gradients()
        for communicator, parts in self.partial.items():
            gradients = [part.master.grad for part in parts if part.master.grad is not None]
            if gradients:
                sum_over(communicator, gradients)

    def end_step(self) -> None:
        """Let the model compute with the masters as they are now, and forget the gradients."""
        for form in self._forms:
            form.end_step()

    def gradients(self) -> list[Tensor]:
        """The buffers in which gradients are at this moment."""
        return [gradient for form in self._forms for gradient in form.gradients()]

    def _remembered(self, each: Remembered) -> Remembered:
        """One thing that a form remembers, with its place in the whole model."""
        part = next(part for part in self.parts if part.name == each.part.name)
        holder, holders = 0, 1
        for communicator in self._seen[part.name]:
            holder, holders = holder * communicator.size() + communicator.rank(), holders * communicator.size()
        return each.placed(part, holder, holders)

    def _placed(self, part: ParameterShard, where: Placement, along: Along, groups: Groups) -> ParameterShard:
        """The part as one of the whole model."""
        counted = along.groups.mesh.names if along.groups else self.split
        groups = along.groups or groups
        replicated = [axis for axis in counted if axis not in where.spec.split and axis not in along.shard_axes]
        beside = [axis for axis in where.spec.partial if groups.is_beside(axis)]
        is_primary = part.is_primary and groups.is_first([*replicated, *beside])
        return replace(part, shape=where.shape, block=where.block, is_primary=is_primary)


def sum_over(communicator: Communicator, gradients: Sequence[Tensor]) -> None:
    """Sum each of these over the ranks of a communicator, in place: all of them in one flat buffer."""
    flat(gradients, communicator.group, lambda whole, _: communicator.all_reduce(whole))


def partial_groups(where: Placement, groups: Groups) -> list[Communicator]:
    """The groups of ranks that each have a part of a parameter's gradient."""
    partial = where.spec.partial
    axes = [axis for axis in groups.mesh.names if axis in partial]
    beside = [groups.communicator(axis) for axis in sorted(partial) if groups.is_beside(axis)]
    return ([groups.communicator(*axes)] if groups.mesh.size(*axes) > 1 else []) + beside

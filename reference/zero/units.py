"""A model in units, of which each rank holds a shard: what FSDP can do with them, without saying when.

A *unit* is a part of the model whose parameters are gathered together: a block, say. There are four things to do:

    unshard             begin to all-gather the parameters of some units
    wait_for_unshard    their values are there
    reshard_all_but     free the parameters of all other units: each rank keeps its shard
    reduce_all_but      reduce-scatter the gradients of all other units

| driver                               | who says when                                  | for                        |
|--------------------------------------|------------------------------------------------|----------------------------|
| `fully_sharded.FullySharded`         | hooks, when a module begins or ends to compute | any model                  |
| `by_program.FullyShardedByProgram`   | a program, such as a pipeline's                | the stages of a pipeline   |
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.data_parallel.buckets import Bucket, Buckets
from reference.data_parallel.fixed import Wrapped
from reference.data_parallel.gradient_sync import ParameterShard, StepOrder, require_real, require_shapes
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision

from .choice import lists_of, require_units, units_of
from .ignored import Ignored, without
from .lent import INSTEAD, Prehook
from .shards import ShardedGradients, parts_of
from .unit import FlatParameters, Rounded, Value, make_units, require_values


class ShardedUnits(ABC):
    """The units of a model, their gradients and their masters: a form of data parallelism without its driver.

    Args:
        model: the same on every rank, or on the meta device. Its parameters are replaced.
        group: the n ranks that share parameters, or a communicator of them.
        precision: in which parameters are gathered, gradients reduced, shards kept.
        units: groups of modules whose parameters are gathered together; `units_of(model)` by default.
        replicas: the ranks that hold the same shard as this one, for hybrid sharding.
        value: of a parameter, by name and shape, where the model is on the meta device.
        device: where to keep shards; that of the model by default.
        ignored: parameters that stay whole on every rank, as in plain data parallelism.
        rounded: how parameters travel that are rounded before anything is computed with them.
        node: ranks that keep a second copy of what a step has gathered first, and gather from each other then.

    Raises:
        BadInput: for units that no hook could gather in time, a model without values, and parameters that are not in
            floating point.
        RuntimeError: where a step is not what `StepOrder` says.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        precision: Precision = PRECISIONS["fp32"],
        units: Sequence[Sequence[nn.Module]] | None = None,
        replicas: ProcessGroup | Communicator | None = None,
        value: Value | None = None,
        device: torch.device | None = None,
        ignored: Collection[nn.Parameter] = (),
        rounded: Rounded | None = None,
        node: ProcessGroup | Communicator | None = None,
    ) -> None:
        self.shard_groups, self.remembered, self._rank = (over(group).group,), (), group.rank()
        require_shapes(model)
        every = dict(model.named_parameters())
        named = without(every, ignored)
        self.modules = units_of(model) if units is None else lists_of(units)
        device = device or next((parameter.device for parameter in named.values()), torch.device("cpu"))
        require_units(model, self.modules)
        require_real(named)
        require_values(named, value, device)
        value = value or (lambda name, shape: named[name])

        def apart(name: str, shape: torch.Size) -> bool:
            return rounded is not None and rounded.takes(name, shape)

        def unit_of(own: dict[str, nn.Parameter]) -> FlatParameters:
            way = rounded if all(apart(name, parameter.shape) for name, parameter in own.items()) else None
            return FlatParameters(own, value, group, precision, device, way, node)

        self.units = make_units(model, named, self.modules, unit_of, apart)
        self._rounded = rounded
        self._agree()
        for unit in self.units:
            unit.used = self._used

        n = group.size()
        self._unit_of: dict[Bucket, FlatParameters] = {
            Bucket(unit.parameters, precision.gradients, n): unit for unit in reversed(self.units) if unit.trainable
        }
        self._parts_of: dict[Bucket, list[ParameterShard]] = {
            bucket: parts_of(unit.layout, unit.names, unit.shard, self._rank) for bucket, unit in self._unit_of.items()
        }
        whole = {name: parameter for name, parameter in every.items() if name not in named}
        self._ignored = Ignored(whole, [group, replicas] if replicas else [group], precision)
        self.parts = (*(part for parts in self._parts_of.values() for part in parts), *self._ignored.parts)
        self._gradients = ShardedGradients(group, replicas, keep=False)
        self._last = False  # micro-batch of the step
        self._buckets = Buckets(list(self._parts_of), lambda bucket: self._gradients.launch(bucket, self._last))
        self._wrapped = Wrapped(
            model, masters=(part.master for part in self._ignored.parts), before=named.values(), loadable=False
        )
        self._step = StepOrder()

    def unshard(self, units: Iterable[FlatParameters]) -> None:
        """Begin to gather the parameters of these, where they are not here already."""
        for unit in units:
            unit.unshard()

    def wait_for_unshard(self, units: Iterable[FlatParameters]) -> None:
        """Return when the parameters of these are whole."""
        for unit in units:
            unit.wait_for_unshard()

    def reshard_all_but(self, keep: Collection[FlatParameters]) -> None:
        """Keep nothing of the others but their shards."""
        for unit in self.units:
            if unit not in keep:
                unit.reshard()

    def reduce_all_but(self, unfinished: Collection[FlatParameters]) -> None:
        """Reduce the gradients of all other units, whether all of their parameters were used or not.

        Ranks that used different parameters reduce between the same two gathers: the order is the same on all.
        """
        self._buckets.close([bucket for bucket, unit in self._unit_of.items() if unit not in unfinished])

    @property
    def filled(self) -> bool:
        """Whether a gradient has come, that was not reduced."""
        return self._buckets.filled or self._ignored.filled

    @contextmanager
    def reducing(self, last: bool) -> Iterator[None]:
        """Gradients that are found inside are reduced, each unit's as soon as all of them are there.

        Raises:
            BadInput: if a parameter was replaced, added, frozen or thawed since the model was wrapped.
        """
        self._wrapped.require_unchanged()
        self._wrapped.begin_gradients()
        self._last = last
        self._buckets.expect()
        yield
        self._buckets.flush(last)
        if last:
            self._wrapped.hide_gradients()

    def begin_step(self) -> None:
        """As for `DataParallel`."""
        self._step.begin_step()

    def reduce_gradients(self) -> None:
        """Wait, and give each master its piece of the summed gradient."""
        self._step.reduce_gradients()
        self._gradients.finish()
        for bucket, parts in self._parts_of.items():
            self._gradients.give_to(parts, bucket, self._rank)
        self._ignored.reduce_gradients()

    def end_step(self) -> None:
        """Forget the gradients, and what is still gathered: the next forward gathers what the update has made."""
        self.reshard_all_but(())
        for unit in self.units:
            unit.forget()
        for part in self.parts:
            part.master.grad = None
        self._ignored.end_step()
        self._wrapped.note_values()
        self._wrapped.begin_gradients()
        self._gradients.forget()
        self._buckets.forget()
        self._step.end_step()
        self._agree()

    def _agree(self) -> None:
        """Find scales for what travels rounded: shards are new, or have changed."""
        if self._rounded is not None:
            self._rounded.agree([unit for unit in self.units if unit.rounded])

    def gradients(self) -> list[Tensor]:
        """Buckets and shards that hold gradients now."""
        filling = [bucket.flat for bucket in self._parts_of if bucket.flat is not None]
        return self._gradients.buffers() + filling + self._ignored.gradients()

    def __deepcopy__(self, memo: dict) -> "ShardedUnits":
        raise BadInput(f"a sharded model cannot be copied: no rank has all of it; {INSTEAD}")

    def __reduce_ex__(self, protocol: int) -> tuple:
        raise BadInput(f"a sharded model cannot be saved as it is: no rank has all of it; {INSTEAD}")

    @abstractmethod
    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        """As for `DataParallel`."""

    @abstractmethod
    def _used(self, unit: FlatParameters, name: str) -> Prehook | None:
        """An operation takes parameter `name` of a unit: let its values be there. See `lent.Lender.lend`."""


def require_ready(unit: FlatParameters, name: str) -> None:
    """Refuse to compute with a parameter whose values are not there.

    Raises:
        BadInput: that says how to read it.
    """
    if not unit.ready:
        raise BadInput(f"{name} is sharded, and whole while the model computes: {INSTEAD}")

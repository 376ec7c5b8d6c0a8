"""ZeRO stage 3, or FSDP: a rank holds an n-th of the parameters, and borrows the rest for as long as it takes.

A *unit* is a part of the model whose parameters are gathered together: a block, say. Its life in one step
(Rajbhandari et al. 2020, "ZeRO", sec. 5.3; Zhao et al. 2023, "PyTorch FSDP"):

    forward     all-gather, compute, free
    backward    all-gather, compute, free; reduce-scatter the gradients
    step        each rank updates its shard; nothing is published, since the next forward gathers

While a unit computes, the next one is already being gathered: two are whole at a time. For each micro-batch a rank
sends 3Ψ(n-1)/n elements, and 2Ψ(n-1)/n where units stay whole from forward to backward. Hybrid sharding (HSDP) adds
replicas: the ranks that hold the same shard all-reduce its gradients, once a step.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from reference.data_parallel.buckets import Bucket, Buckets
from reference.data_parallel.form import Part, Step, require_real
from reference.memory.precision import PRECISIONS, Precision

from .shards import ShardedGradients, parts_of
from .unit import Unit, Value, replace, require_units, require_values, split, units_of


@dataclass(frozen=True, eq=False)
class Visit:
    """One pass through a module: of a unit, or of what the units leave."""

    around: tuple["Visit", ...]  # visits of modules that it lies within, the outermost first
    own: Sequence[Unit]  # what the module itself needs

    @property
    def needs(self) -> list[Unit]:
        """What must be whole: a module around it may go on with its own parameters when this one is done."""
        return [unit for visit in (*self.around, self) for unit in visit.own]


class FullySharded:
    """A model of which each rank holds a shard.

    Works with any optimizer that treats each element by itself, since shards cut through parameters;
    `require_elementwise` refuses the others. A parameter that nobody used has a gradient of zero. All ranks must use
    the same units in the same order; within a unit, a rank may leave out parameters that another one uses.

    Args:
        model: the same on every rank, or on the meta device: then it never exists whole. Its parameters are replaced.
        group: the n ranks that share parameters.
        precision: in which parameters are gathered, gradients reduced, shards kept.
        units: groups of modules whose parameters are gathered together; `units_of(model)` by default. One may lie
            within another: then the inner one comes first. Each is called as `module(...)`, since hooks tell when it is
            needed, and gives tensors, or tuples, lists and dicts of them. What they leave is one more unit, whole for
            as long as the model computes.
        replicas: the ranks that hold the same shard as this one, for hybrid sharding.
        reshard_after_forward: free each unit after its forward; else it stays whole until its backward is over.
        prefetch: gather the next unit while one computes.
        value: of a parameter, by name and shape, where the model is on the meta device.
        device: where to keep shards; that of the model by default.

    Raises:
        BadInput: for units that nobody could gather in time, a model without values, and parameters that are not in
            floating point.
        RuntimeError: where a step is not what `Step` says.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup,
        precision: Precision = PRECISIONS["fp32"],
        units: Sequence[Sequence[nn.Module]] | None = None,
        replicas: ProcessGroup | None = None,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
        value: Value | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.shards, self._rank = (group,), dist.get_rank(group)
        self._reshard_after_forward, self._prefetch = reshard_after_forward, prefetch
        self._order: list[Visit] = []  # of this micro-batch's forward
        self._usual_order: list[Visit] = []  # of the one before
        self._inside: list[Visit] = []  # of modules that now compute, the outermost first
        self._last = True  # micro-batch
        self._open = False  # within a micro-batch
        self._held = False  # whole, whoever computes

        named = dict(model.named_parameters())
        modules = units_of(model) if units is None else units
        device = device or next((parameter.device for parameter in named.values()), torch.device("cpu"))
        require_units(model, modules)
        require_real(named)
        require_values(named, value, device)
        value = value or (lambda name, shape: named[name])
        self.units = make_units(model, modules, lambda own: Unit(own, value, group, precision, device))
        self._needs = who_needs_what(model, modules, self.units)
        self._watch(model)

        n = dist.get_world_size(group)
        self._unit_of: dict[Bucket, Unit] = {
            Bucket(unit.parameters, precision.gradients, n): unit for unit in reversed(self.units) if unit.trainable
        }
        self._parts_of: dict[Bucket, list[Part]] = {
            bucket: parts_of(unit.layout, unit.names, unit.shard, self._rank) for bucket, unit in self._unit_of.items()
        }
        self.parts = tuple(part for parts in self._parts_of.values() for part in parts)
        self._gradients = ShardedGradients(group, replicas, keep=False)
        self._buckets = Buckets(list(self._parts_of), lambda bucket: self._gradients.launch(bucket, self._last))
        self._step = Step()

    def hold(self) -> None:
        """Begin to gather everything, and keep it until `release`. Gradients then add up, and leave in the last alone.

        For whoever knows better than the order of modules when parameters are needed, such as a pipeline.
        """
        self._held = True
        for unit in self.units:
            unit.gather()

    def wait(self) -> None:
        """Return when everything that was begun to be gathered is whole."""
        for unit in self.units:
            unit.wait()

    def release(self) -> None:
        """Free everything. Gradients that are still here leave first."""
        self._held = False
        for bucket in self._parts_of:
            if bucket.filled:
                self._gradients.launch(bucket, last=False)
        self._free_all_but(())

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Gathers and reduce-scatters in every micro-batch: there is no room for what has not been sent."""
        with self._step.micro_batch(last):
            if self._held and not last:
                yield
                return
            self._last = last
            if not self._held:
                self._start_order()
            self._buckets.expect()
            self._open = True
            try:
                yield
            finally:
                self._open = False
            self._buckets.flush(last)
            self._free_all_but(())

    def collect(self) -> None:
        """Wait, and give each master its piece of the summed gradient."""
        self._step.collect()
        self._gradients.finish()
        for bucket, parts in self._parts_of.items():
            self._gradients.give_to(parts, bucket, self._rank)

    def publish(self) -> None:
        """Forget the gradients, and what is still gathered: the next forward gathers what the update has made."""
        self._held = False
        self._free_all_but(())
        for part in self.parts:
            part.master.grad = None
        self._gradients.forget()
        self._buckets.forget()
        self._step.publish()

    def gradients(self) -> list[Tensor]:
        """Buckets and shards that hold gradients now."""
        return self._gradients.buffers() + [bucket.flat for bucket in self._parts_of if bucket.flat is not None]

    def _watch(self, model: nn.Module) -> None:
        """Be told when a module of a unit begins and ends to compute. The model is told first when it begins."""
        model.register_forward_pre_hook(self._begin)
        for module in self._needs:
            module.register_forward_pre_hook(self._enter_forward)
            module.register_forward_hook(self._leave_forward)
        model.register_forward_hook(self._end)

    def _start_order(self) -> None:
        self._usual_order, self._order = self._order, []

    def _begin(self, model: nn.Module, inputs: object) -> None:
        """Within a micro-batch the order goes on from one forward to the next: backward goes through all of them."""
        if not self._open:
            self._start_order()
        self._inside = []

    def _enter_forward(self, module: nn.Module, inputs: object) -> None:
        visit = Visit(tuple(self._inside), self._needs[module])
        self._inside.append(visit)
        self._order.append(visit)
        following = self._usual_order[len(self._order) :][:1]
        self._enter(visit, following, keep=() if self._reshard_after_forward else self.units)

    def _leave_forward(self, module: nn.Module, inputs: object, output: object) -> None:
        visit = self._inside.pop()
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(partial(self._enter_backward, self._order, visit))

    def _end(self, model: nn.Module, inputs: object, output: object) -> None:
        if self._reshard_after_forward:
            self._free_all_but(())

    def _enter_backward(self, order: list[Visit], visit: Visit, gradient: Tensor) -> None:
        """The gradient of a visit's output is known, so backward is through with all visits after it."""
        earlier = order[: order.index(visit)]
        inside = [other for other in order if visit in other.around]  # their backward is still to come
        following = [other for other in reversed(earlier) if other not in visit.around][:1]
        self._launch_all_but(needs_of([*earlier, visit, *inside]))
        self._enter(visit, following, keep=needs_of(inside if self._reshard_after_forward else [*inside, *earlier]))

    def _launch_all_but(self, unfinished: Collection[Unit]) -> None:
        """Reduce the gradients of all other units, whether all of their parameters were used or not.

        Ranks that used different parameters reduce between the same two gathers: the order is the same on all.
        """
        self._buckets.close([bucket for bucket, unit in self._unit_of.items() if unit not in unfinished])

    def _enter(self, visit: Visit, following: Sequence[Visit], keep: Collection[Unit]) -> None:
        """Make whole what this visit needs, then begin with what the `following` one needs; free the rest.

        In this order: two gathers at a time would share the link, and the visit wait for more than it needs.
        """
        now, soon = visit.needs, [unit for other in following if self._prefetch for unit in other.needs]
        self._free_all_but({*now, *soon, *keep})
        for unit in now:
            unit.gather()
        for unit in now:
            unit.wait()
        for unit in soon:
            unit.gather()

    def _free_all_but(self, keep: Collection[Unit]) -> None:
        for unit in self.units:
            if unit not in keep and not self._held:
                unit.free()


def make_units(
    model: nn.Module, modules: Sequence[Sequence[nn.Module]], make: Callable[[dict[str, nn.Parameter]], Unit]
) -> list[Unit]:
    """A unit for each group of modules, and before them one for what they leave; who first has a parameter owns it.

    Their parameters take the place of those in `model`.
    """
    left, units = dict(model.named_parameters()), []
    for group in [*modules, [model]]:
        made = []
        for own in split(left, group):
            made.append(make(own))
            replace(model, dict(zip(own.values(), made[-1].parameters, strict=True)))
            left = {name: parameter for name, parameter in left.items() if name not in own}
        units = made + units if group == [model] else units + made
    return units


def needs_of(visits: Sequence[Visit]) -> set[Unit]:
    """All units that these need."""
    return {unit for visit in visits for unit in visit.needs}


def who_needs_what(
    model: nn.Module, modules: Sequence[Sequence[nn.Module]], units: Sequence[Unit]
) -> dict[nn.Module, list[Unit]]:
    """For each module of a unit, and for the model, the units that it needs beside those of modules within it.

    A tied parameter has several names, and is needed by whatever module has one of them.
    """
    unit_of = {parameter: unit for unit in units for parameter in unit.parameters}
    names = {module: name for name, module in model.named_modules()}
    inner = sorted((module for group in modules for module in group), key=lambda module: -len(names[module]))
    needs: dict[nn.Module, dict[Unit, None]] = {module: {} for module in (model, *inner)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = next((module for module in inner if name.startswith(f"{names[module]}.")), model)
        needs[owner][unit_of[parameter]] = None
    return {module: list(own) for module, own in needs.items() if own}

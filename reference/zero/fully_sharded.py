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

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.data_parallel.buckets import Bucket, Buckets
from reference.data_parallel.fixed import Wrapped
from reference.data_parallel.form import Part, Step, require_real
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision

from .choice import require_units, units_of, warn_of_one_unit
from .ignored import Ignored, without
from .lent import INSTEAD, Prehook
from .shards import ShardedGradients, parts_of
from .unit import Unit, Value, require_values
from .visits import Visit, in_backward, make_units, needs_of, tensors_in, who_needs_what

NOTHING_COMPUTED = (
    "this rank computed nothing in a micro-batch, and FSDP gathers on all ranks together: give it one whose loss is "
    "0 * model(x).sum(), or take a form that keeps parameters whole"
)


class FullySharded:
    """A model of which each rank holds a shard.

    Works with any optimizer that treats each element by itself, since shards cut through parameters;
    `require_elementwise` refuses the others. A parameter that nobody used has a gradient of zero. All ranks must use
    the same units in the same order; within a unit, a rank may leave out parameters that another one uses.

    Args:
        model: the same on every rank, or on the meta device: then it never exists whole. Its parameters are replaced.
        group: the n ranks that share parameters, or a communicator of them.
        precision: in which parameters are gathered, gradients reduced, shards kept.
        units: groups of modules whose parameters are gathered together; `units_of(model)` by default, with a warning
            where that is the whole model. One may lie within another: then the inner one comes first. Each is called as
            `module(...)`, since hooks tell when it is needed; what else uses its parameters, see `lent`, has them
            gathered a moment later. What they leave is one more unit, whole for as long as the model computes.
        replicas: the ranks that hold the same shard as this one, for hybrid sharding.
        reshard_after_forward: free each unit after its forward; else it stays whole until its backward is over.
        prefetch: gather the next unit while one computes.
        value: of a parameter, by name and shape, where the model is on the meta device.
        device: where to keep shards; that of the model by default.
        ignored: parameters that stay whole on every rank, as in plain data parallelism.

    Raises:
        BadInput: for units that nobody could gather in time, a model without values, and parameters that are not in
            floating point. By `micro_batch`, if a parameter was replaced, added, frozen or thawed since, or if this
            rank did not compute while others may wait for it.
        RuntimeError: where a step is not what `Step` says.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        precision: Precision = PRECISIONS["fp32"],
        units: Sequence[Sequence[nn.Module]] | None = None,
        replicas: ProcessGroup | Communicator | None = None,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
        value: Value | None = None,
        device: torch.device | None = None,
        ignored: Collection[nn.Parameter] = (),
    ) -> None:
        self.shards, self._rank = (over(group).group,), group.rank()
        self._reshard_after_forward, self._prefetch = reshard_after_forward, prefetch
        self._order: list[Visit] = []  # of this micro-batch's forward
        self._usual_order: list[Visit] = []  # of the one before
        self._inside: list[Visit] = []  # of modules that now compute, the outermost first
        self._last = True  # micro-batch
        self._open = False  # within a micro-batch
        self._held = False  # whole, whoever computes
        self._keeps = False  # a backward made a graph: whoever goes through it may need everything
        self._computed = False  # in this micro-batch

        every = dict(model.named_parameters())
        named = without(every, ignored)
        modules = units_of(model) if units is None else units
        device = device or next((parameter.device for parameter in named.values()), torch.device("cpu"))
        require_units(model, modules)
        require_real(named)
        require_values(named, value, device)
        if units is None:
            warn_of_one_unit(model, modules)
        value = value or (lambda name, shape: named[name])
        self.units = make_units(model, named, modules, lambda own: Unit(own, value, group, precision, device))
        self._needs = who_needs_what(model, modules, self.units)
        self._watch(model)

        n = group.size()
        self._unit_of: dict[Bucket, Unit] = {
            Bucket(unit.parameters, precision.gradients, n): unit for unit in reversed(self.units) if unit.trainable
        }
        self._parts_of: dict[Bucket, list[Part]] = {
            bucket: parts_of(unit.layout, unit.names, unit.shard, self._rank) for bucket, unit in self._unit_of.items()
        }
        whole = {name: parameter for name, parameter in every.items() if name not in named}
        self._ignored = Ignored(whole, [group, replicas] if replicas else [group], precision)
        self.parts = (*(part for parts in self._parts_of.values() for part in parts), *self._ignored.parts)
        self._gradients = ShardedGradients(group, replicas, keep=False)
        self._buckets = Buckets(list(self._parts_of), lambda bucket: self._gradients.launch(bucket, self._last))
        self._wrapped = Wrapped(
            model, masters=(part.master for part in self._ignored.parts), before=named.values(), loadable=False
        )
        self._step = Step()

    def hold(self) -> None:
        """Begin to gather everything, and keep it until `release`. Gradients then add up, and leave in the last alone.

        For whoever knows better than the order of modules when parameters are needed, such as a pipeline.
        """
        self._held = True
        for unit in self.units:
            unit.held = True
            unit.gather()

    def wait(self) -> None:
        """Return when everything that was begun to be gathered is whole."""
        for unit in self.units:
            unit.wait()

    def release(self) -> None:
        """Free everything. Gradients that are still here leave first."""
        self._let_go()
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
            self._wrapped.require_unchanged()
            self._wrapped.begin_gradients()
            self._last, self._computed = last, self._held
            if not self._held:
                self._start_order()
            self._buckets.expect()
            self._open = True
            try:
                yield
            finally:
                self._open = self._keeps = False
            if self.units and not self._computed and self.shards[0].size() > 1:
                raise BadInput(NOTHING_COMPUTED)
            self._buckets.flush(last)
            self._free_all_but(())
            if last:
                self._wrapped.hide_gradients()

    def reduce_gradients(self) -> None:
        """Wait, and give each master its piece of the summed gradient."""
        self._step.reduce_gradients()
        self._gradients.finish()
        for bucket, parts in self._parts_of.items():
            self._gradients.give_to(parts, bucket, self._rank)
        self._ignored.reduce_gradients()

    def end_step(self) -> None:
        """Forget the gradients, and what is still gathered: the next forward gathers what the update has made."""
        self._let_go()
        self._free_all_but(())
        for part in self.parts:
            part.master.grad = None
        self._ignored.end_step()
        self._wrapped.begin_gradients()
        self._gradients.forget()
        self._buckets.forget()
        self._step.end_step()

    def gradients(self) -> list[Tensor]:
        """Buckets and shards that hold gradients now."""
        filling = [bucket.flat for bucket in self._parts_of if bucket.flat is not None]
        return self._gradients.buffers() + filling + self._ignored.gradients()

    def __deepcopy__(self, memo: dict) -> "FullySharded":
        raise BadInput(f"a sharded model cannot be copied: no rank has all of it; {INSTEAD}")

    def __reduce_ex__(self, protocol: int) -> tuple:
        raise BadInput(f"a sharded model cannot be saved as it is: no rank has all of it; {INSTEAD}")

    def _watch(self, model: nn.Module) -> None:
        """Be told when a module of a unit begins and ends to compute. The model is told first when it begins."""
        model.register_forward_pre_hook(self._begin)
        for module in self._needs:
            module.register_forward_pre_hook(self._enter_forward)
            module.register_forward_hook(self._leave_forward)
        model.register_forward_hook(self._end)
        for unit in self.units:
            unit.used = self._used

    def _start_order(self) -> None:
        self._usual_order, self._order = self._order, []

    def _begin(self, model: nn.Module, inputs: object) -> None:
        """Within a micro-batch the order goes on from one forward to the next: backward goes through all of them."""
        self._computed = True
        if not self._open and not in_backward():
            self._start_order()
            self._keeps = False
        self._inside = []

    def _enter_forward(self, module: nn.Module, inputs: object) -> None:
        if in_backward():  # a checkpoint recomputes: what backward is at stays
            self._make_whole(self._needs[module])
            return
        visit = Visit(tuple(self._inside), self._needs[module])
        self._inside.append(visit)
        self._order.append(visit)
        following = [other for other in self._usual_order[len(self._order) :] if other.own][:1]
        if visit.own:
            self._enter(visit, following, keep=() if self._reshard_after_forward else self.units)

    def _leave_forward(self, module: nn.Module, inputs: object, output: object) -> None:
        if in_backward():
            return
        visit = self._inside.pop()
        if visit.own:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._enter_backward, self._order, visit))

    def _end(self, model: nn.Module, inputs: object, output: object) -> None:
        if self._reshard_after_forward and not in_backward():
            self._free_all_but(())

    def _used(self, unit: Unit, name: str) -> Prehook:
        """An operation takes a parameter. A module that uses one of another unit needs that unit from now on."""
        visit = self._inside[-1] if self._inside else None
        if visit and unit not in visit.needs:
            visit.own.append(unit)
        if visit or in_backward():
            self._make_whole([unit])
        unit.wait()
        if not unit.ready:
            raise BadInput(f"{name} is sharded, and whole while the model computes: {INSTEAD}")
        return partial(self._use_again, self._order, visit, unit)

    def _use_again(self, order: list[Visit], visit: Visit | None, unit: Unit, gradients: object) -> None:
        """Backward comes to an operation that took a parameter: hooks at outputs may not have told."""
        self._keeps |= torch.is_grad_enabled()
        if not unit.ready:
            if visit in order:
                self._enter_backward(order, visit, gradients)
            self._make_whole([unit])

    def _enter_backward(self, order: list[Visit], visit: Visit, gradient: object) -> None:
        """The gradient of a visit's output is known, so backward has finished all visits after it.

        Backward that makes a graph, for a gradient penalty, will be gone through again, and backwards.
        """
        self._computed = True
        self._keeps |= torch.is_grad_enabled()
        earlier = order[: order.index(visit)]
        inside = [other for other in order if visit in other.around]  # their backward is still to come
        following = [other for other in reversed(earlier) if other not in visit.around and other.own][:1]
        self._launch_all_but(needs_of([*earlier, visit, *inside]))
        self._enter(visit, following, keep=needs_of(inside if self._reshard_after_forward else [*inside, *earlier]))

    def _launch_all_but(self, unfinished: Collection[Unit]) -> None:
        """Reduce the gradients of all other units, whether all of their parameters were used or not.

        Ranks that used different parameters reduce between the same two gathers: the order is the same on all.
        """
        if not self._keeps:
            self._buckets.close([bucket for bucket, unit in self._unit_of.items() if unit not in unfinished])

    def _enter(self, visit: Visit, following: Sequence[Visit], keep: Collection[Unit]) -> None:
        """Make whole what this visit needs, then begin with what the `following` one needs; free the rest.

        In this order: two gathers at a time would share the link, and the visit wait for more than it needs.
        """
        now, soon = visit.needs, [unit for other in following if self._prefetch for unit in other.needs]
        self._free_all_but({*now, *soon, *keep})
        self._make_whole(now)
        for unit in soon:
            unit.gather()

    def _make_whole(self, units: Sequence[Unit]) -> None:
        for unit in units:
            unit.gather()
        for unit in units:
            unit.wait()

    def _free_all_but(self, keep: Collection[Unit]) -> None:
        if self._held or self._keeps:
            return
        for unit in self.units:
            if unit not in keep:
                unit.free()

    def _let_go(self) -> None:
        self._held = self._keeps = False
        for unit in self.units:
            unit.held = False

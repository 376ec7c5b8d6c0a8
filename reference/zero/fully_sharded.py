"""ZeRO stage 3, or FSDP: a rank holds an n-th of the parameters, and borrows the rest for as long as it takes.

This is `plain.fully_sharded` with: any model, cut into units (`units`); hooks that find out when each is needed; the
next unit gathered while one computes; frozen, tied and unused parameters; mixed precision; hybrid sharding. The life of
a unit in one step (Rajbhandari et al. 2020, "ZeRO", sec. 5.3; Zhao et al. 2023, "PyTorch FSDP"):

    forward     all-gather, compute, free
    backward    all-gather, compute, free; reduce-scatter the gradients
    step        each rank updates its shard; nothing is published, since the next forward gathers

While a unit computes, the next one is already being gathered: two are whole at a time. For each micro-batch a rank
sends 3Ψ(n-1)/n elements, and 2Ψ(n-1)/n where units stay whole from forward to backward. Hybrid sharding (HSDP) adds
replicas: the ranks that hold the same shard all-reduce its gradients, once a step.

How a unit's time is known:

    a module is called               its parameters are needed, and soon those of the call that came next last time
    its output gets a gradient       backward has finished all later calls, and needs this one; soon, the one before
    an operation takes a parameter   its module was not called: gather now, and from now on with the caller
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision

from .choice import warn_of_one_unit
from .lent import Prehook, not_compiled
from .module_calls import (
    ModuleCall,
    Recording,
    first_with_parameters,
    in_backward,
    needed_by,
    tensors_in,
    who_needs_what,
)
from .unit import FlatParameters, Rounded, Value
from .units import ShardedUnits, require_ready

NOTHING_COMPUTED = (
    "this rank computed nothing in a micro-batch, and FSDP gathers on all ranks together: give it one whose loss is "
    "0 * model(x).sum(), or take a form that keeps parameters whole"
)


class FullySharded(ShardedUnits):
    """A model of which each rank holds a shard.

    Works with any optimizer that treats each element by itself, since shards cut through parameters;
    `require_elementwise` refuses the others. An unused parameter has a gradient of zero. All ranks must use
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
        rounded: how parameters travel that are rounded before anything is computed with them.
        within: the model whose call is a forward, where `model` holds a few of its modules.
        node: ranks that keep a second copy of what a step has gathered first, and gather from each other then.

    Raises:
        BadInput: for units that no hook could gather in time, a model without values, and parameters that are not in
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
        rounded: Rounded | None = None,
        within: nn.Module | None = None,
        node: ProcessGroup | Communicator | None = None,
    ) -> None:
        super().__init__(model, group, precision, units, replicas, value, device, ignored, rounded, node)
        if units is None:
            warn_of_one_unit(model, self.modules)
        self._reshard_after_forward, self._prefetch = reshard_after_forward, prefetch
        self._needs = who_needs_what(model, self.modules, self.units)
        self._recording = Recording()
        self._previous: list[ModuleCall] = []  # of the recording before this one: it tells what comes next
        caller = within or model
        caller.register_forward_pre_hook(self._begin_forward)  # told before its own call begins
        for module in self._needs:
            module.register_forward_pre_hook(self._begin_call)
            module.register_forward_hook(self._end_call)
        caller.register_forward_hook(self._end_forward)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Gathers and reduce-scatters in every micro-batch: there is no room for what has not been sent."""
        with self._step.micro_batch(last, self.filled), self.reducing(last):
            recording = self._record(Recording(is_micro_batch=True))
            try:
                yield
            finally:
                recording.is_micro_batch = recording.keeps_all = False
            if self.units and not recording.computed and self.shard_groups[0].size() > 1:
                raise BadInput(NOTHING_COMPUTED)
        self.reshard_all_but(())

    def _record(self, recording: Recording) -> Recording:
        self._previous, self._recording = self._recording.calls, recording
        return recording

    @not_compiled
    def _begin_forward(self, model: nn.Module, inputs: object) -> None:
        """Within a micro-batch the calls of several forwards follow each other: backward goes through all of them."""
        if not self._recording.is_micro_batch and not in_backward():
            self._record(Recording())
        self._recording.computed, self._recording.inside = True, []

    @not_compiled
    def _begin_call(self, module: nn.Module, inputs: object) -> None:
        if in_backward():  # a checkpoint recomputes: what backward is at stays
            self._make_whole(self._needs[module])
            return
        recording = self._recording
        call = recording.begin(self._needs[module])
        if call.own:
            following = first_with_parameters(self._previous[len(recording.calls) :])
            self._turn_to(call, following, keep=() if self._reshard_after_forward else self.units)

    @not_compiled
    def _end_call(self, module: nn.Module, inputs: object, output: object) -> None:
        if in_backward():
            return
        call = self._recording.inside.pop()
        if call.own:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._begin_backward, self._recording.calls, call))

    @not_compiled
    def _end_forward(self, model: nn.Module, inputs: object, output: object) -> None:
        if self._reshard_after_forward and not in_backward():
            self._free_all_but(())

    def _begin_backward(self, calls: list[ModuleCall], call: ModuleCall, gradient: object) -> None:
        """The gradient of a call's output is known, so backward has finished all calls after it.

        Backward that makes a graph, for a gradient penalty, will be gone through again, and backwards.
        """
        self._recording.computed = True
        self._recording.keeps_all |= torch.is_grad_enabled()
        earlier = calls[: calls.index(call)]
        inside = [other for other in calls if call in other.enclosing]  # their backward is still to come
        following = first_with_parameters(other for other in reversed(earlier) if other not in call.enclosing)
        if not self._recording.keeps_all:
            self.reduce_all_but(needed_by([*earlier, call, *inside]))
        self._turn_to(call, following, keep=needed_by(inside if self._reshard_after_forward else [*inside, *earlier]))

    def _turn_to(self, call: ModuleCall, following: ModuleCall | None, keep: Collection[FlatParameters]) -> None:
        """Make whole what this call needs, then begin with what the `following` one needs; free the rest.

        In this order: two gathers at a time would share the link, and the call wait for more than it needs.
        """
        soon = following.needed if following and self._prefetch else []
        self._free_all_but({*call.needed, *soon, *keep})
        self._make_whole(call.needed)
        self.unshard(soon)

    def _used(self, unit: FlatParameters, name: str) -> Prehook:
        """An operation takes a parameter. A module that uses one of another unit needs that unit from now on."""
        recording = self._recording
        call = recording.inside[-1] if recording.inside else None
        if call and unit not in call.needed:
            call.own.append(unit)
        if not unit.ready:
            if call or in_backward() or recording.is_micro_batch:
                recording.computed = True
                unit.unshard()
            unit.wait_for_unshard()
            require_ready(unit, name)
        return partial(self._used_again, recording.calls, call, unit)

    def _used_again(
        self, calls: list[ModuleCall], call: ModuleCall | None, unit: FlatParameters, gradients: object
    ) -> None:
        """Backward comes to an operation that took a parameter: hooks at outputs may not have told."""
        self._recording.keeps_all |= torch.is_grad_enabled()
        if not unit.ready:
            if call in calls:
                self._begin_backward(calls, call, gradients)
            self._make_whole([unit])

    def _make_whole(self, units: Sequence[FlatParameters]) -> None:
        self.unshard(units)
        self.wait_for_unshard(units)

    def _free_all_but(self, keep: Collection[FlatParameters]) -> None:
        if not self._recording.keeps_all:
            self.reshard_all_but(keep)

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
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from reference.data_parallel.buckets import Bucket, Buckets
from reference.data_parallel.form import Part
from reference.memory.precision import PRECISIONS, Precision

from .shards import ShardedGradients, parts_of
from .unit import Unit, Value, replace, split, units_of


class FullySharded:
    """A model of which each rank holds a shard.

    Works with any optimizer that treats each element by itself, since shards cut through parameters. A parameter that
    nobody used has a gradient of zero.

    Args:
        model: the same on every rank, or on the meta device: then it never exists whole. Its parameters are replaced.
        group: the n ranks that share parameters.
        precision: in which parameters are gathered, gradients reduced, shards kept.
        units: groups of modules whose parameters are gathered together; `units_of(model)` by default. What they leave
            is one more unit, whole for as long as the model computes.
        replicas: the ranks that hold the same shard as this one, for hybrid sharding.
        reshard_after_forward: free each unit after its forward; else it stays whole until its backward is over.
        prefetch: gather the next unit while one computes.
        value: of a parameter, by name and shape, where the model is on the meta device.
        device: where to keep shards; that of the model by default.
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
        self.shards, self._rank = group, dist.get_rank(group)
        self._reshard_after_forward, self._prefetch = reshard_after_forward, prefetch
        self._order: list[nn.Module] = []  # modules of units, as this forward entered them
        self._usual_order: list[nn.Module] = []  # as the forward before it did
        self._inside: list[int] = []  # positions in the order of the modules that now compute
        self._last = True  # micro-batch

        named = dict(model.named_parameters())
        value = value or (lambda name, shape: named[name])
        device = device or next(iter(named.values())).device
        modules = units_of(model) if units is None else units
        self.units = make_units(model, modules, lambda own: Unit(own, value, group, precision, device))
        self._needs = who_needs_what(model, modules, self.units)
        self._watch(model)

        n = dist.get_world_size(group)
        self._parts_of: dict[Bucket, list[Part]] = {
            Bucket(unit.parameters, precision.gradients, n): parts_of(unit.layout, unit.names, unit.shard, self._rank)
            for unit in reversed(self.units)
            if unit.trainable
        }
        self.parts = tuple(part for parts in self._parts_of.values() for part in parts)
        self._gradients = ShardedGradients(group, replicas, keep=False)
        self._buckets = Buckets(list(self._parts_of), lambda bucket: self._gradients.launch(bucket, self._last))

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Gathers and reduce-scatters in every micro-batch: there is no room for what has not been sent."""
        self._last = last
        self._buckets.expect()
        yield
        self._buckets.flush()
        self._free_all_but(())

    def collect(self) -> None:
        """Wait, and give each master its piece of the summed gradient."""
        self._gradients.finish()
        for bucket, parts in self._parts_of.items():
            self._gradients.give_to(parts, bucket, self._rank)

    def publish(self) -> None:
        """Forget the gradients, and what is still gathered: the next forward gathers what the update has made."""
        self._free_all_but(())
        for part in self.parts:
            part.master.grad = None
        self._gradients.forget()

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

    def _begin(self, model: nn.Module, inputs: object) -> None:
        self._usual_order, self._order, self._inside = self._order, [], []

    def _enter_forward(self, module: nn.Module, inputs: object) -> None:
        self._inside.append(len(self._order))
        self._order.append(module)
        following = self._usual_order[len(self._order) :][:1]
        self._enter(module, following, keep=() if self._reshard_after_forward else self.units)

    def _leave_forward(self, module: nn.Module, inputs: object, output: object) -> None:
        position = self._inside.pop()
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(partial(self._enter_backward, self._order, position))

    def _end(self, model: nn.Module, inputs: object, output: object) -> None:
        if self._reshard_after_forward:
            self._free_all_but(())

    def _enter_backward(self, order: list[nn.Module], position: int, gradient: Tensor) -> None:
        following = order[:position][-1:]
        earlier = {unit for module in order[:position] for unit in self._needs[module]}
        self._enter(order[position], following, keep=() if self._reshard_after_forward else earlier)

    def _enter(self, module: nn.Module, following: Sequence[nn.Module], keep: Collection[Unit]) -> None:
        """Make whole what `module` needs, begin with what the `following` one needs, free the rest."""
        now = self._needs[module]
        soon = [unit for module in following if self._prefetch for unit in self._needs[module]]
        self._free_all_but({*now, *soon, *keep})
        for unit in (*now, *soon):
            unit.gather()
        for unit in now:
            unit.wait()

    def _free_all_but(self, keep: Collection[Unit]) -> None:
        for unit in self.units:
            if unit not in keep:
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


def who_needs_what(
    model: nn.Module, modules: Sequence[Sequence[nn.Module]], units: Sequence[Unit]
) -> dict[nn.Module, list[Unit]]:
    """For each module of a unit, and for the model itself, the units that must be whole while it computes."""
    inside = {parameter for group in modules for module in group for parameter in module.parameters()}
    rest = [unit for unit in units if not inside & set(unit.parameters)]
    needs = {model: rest} if rest else {}
    for module in (module for group in modules for module in group):
        own = set(module.parameters())
        needs[module] = [unit for unit in units if unit in rest or own & set(unit.parameters)]
    return needs

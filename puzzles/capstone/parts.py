"""What adapters fill, and the training that is put together from it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.collectives.default import Communicate, over
from reference.mesh import Mesh
from reference.models.ops import Ops, equip
from reference.pipeline_parallel.schedule import Schedule
from reference.plan import Plan
from reference.train import Training

from .engines import Machine
from .said import communicate

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class OwnPlan(Plan):
    """A plan of which a learner's code says more than the reference's: in which order stages compute, who is where."""

    order: Callable[[int, int, int], Schedule] | None = field(default=None, compare=False)
    seated: Callable[[Mesh], Mesh] = field(default=lambda mesh: mesh, compare=False)

    def timetable(self) -> Schedule:
        """The learner's order of each rank, or that of the schedule."""
        if self.order is None:
            return super().timetable()
        return self.order(self.pipeline_parallel, self.micro_batches, 2)

    def mesh(self, ranks: int, model: Any) -> Mesh:
        """As a plan says, its groups as the learner finds them."""
        return self.seated(super().mesh(ranks, model))


@dataclass
class Parts:
    """The pieces of an engine that are not the reference's. Adapters write into it, `training` reads it.

    Attributes:
        collectives: by the names of a communicator.
        ops: for the layers of a class, and with which numbers among them, what stands around their ops.
        routes: of tokens to experts and back, by the names of their puzzles' functions.
        form: the form of data parallelism: a class, or a function that sums gradients.
        order: of the stages of a pipeline.
        tools: what saves, copies and restores a training's state.
        seated: another view of the plan's mesh.
        after: what is done to a training once it is there: its batches, its loss, its updates.
    """

    collectives: dict[str, Function] = field(default_factory=dict)
    ops: list[tuple[type[nn.Module], Callable[[int], bool], Callable[[Ops], Ops]]] = field(default_factory=list)
    form: Any = None
    routes: dict[str, Function] = field(default_factory=dict)
    order: Function | None = None
    tools: dict[str, Function] = field(default_factory=dict)
    seated: list[Callable[[Mesh], Mesh]] = field(default_factory=list)
    after: list[Callable[[Training], None]] = field(default_factory=list)

    @property
    def communicate(self) -> Communicate:
        """Makes communicators."""
        return communicate(self.collectives) if self.collectives else over

    def plan(self, plan: Plan) -> Plan:
        """The same with what is the learner's."""
        fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        made = OwnPlan(**fields, order=self.order, seated=partial(_in_turn, self.seated))
        return replace(made, data_parallel=self.form) if self.form is not None else made


def _in_turn(functions: list[Callable[[Mesh], Mesh]], mesh: Mesh) -> Mesh:
    for function in functions:
        mesh = function(mesh)
    return mesh


class Counted:
    """A function of a learner that counts its calls."""

    def __init__(self, name: str, function: Function, calls: Counter[str]) -> None:
        self.name, self.function, self.calls = name, function, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls[self.name] += 1
        return self.function(*args, **kwargs)


def parts_of(machine: Machine, functions: Mapping[str, Function], calls: Counter[str]) -> Parts:
    """What these functions make of an engine: each takes its seat, if the engine has that one."""
    from .seats import SEATS, filled

    parts, taken = Parts(), filled(functions)
    for seat in SEATS:
        if seat.name in taken and machine.name in seat.engines:
            name = taken[seat.name]
            seat.take(Counted(name, functions[name], calls), parts)
    return parts


def training_of(
    machine: Machine,
    functions: Mapping[str, Function],
    calls: Counter[str] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Training:
    """Put a training together, on a rank; all ranks call it."""
    parts = parts_of(machine, functions, Counter() if calls is None else calls)
    group = group or dist.group.WORLD
    made = Training(machine.config, group, torch.device("cpu"), parts.plan(machine.plan), parts.communicate)
    for kind, chosen, wrap in parts.ops:
        layers = [module for module in made.model.modules() if isinstance(module, kind)]
        for number, layer in enumerate(layers):
            if chosen(number):
                equip(layer, wrap)
    for work in parts.after:
        work(made)
    return made


def steps(training: Training, first: int, last: int, reread: bool = False) -> tuple[list[float], list[float]]:
    """Take steps [first, last). Returns the loss and the norm of each.

    Args:
        reread: each step reads the first batch.
    """
    losses, norms = [], []
    for step in range(first, last):
        part: Tensor = training.backward(0 if reread else step).clone()
        dist.all_reduce(part, group=training.loss_group)
        losses.append(float(part))
        norms.append(training.update(step))
    return losses, norms

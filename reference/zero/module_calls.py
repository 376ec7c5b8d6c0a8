"""When which unit of FSDP is needed: the calls of modules in a micro-batch, and what each of them needs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .unit import FlatParameters


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module: of a unit, or of what the units leave."""

    enclosing: tuple["ModuleCall", ...]  # calls that it is made within, the outermost first
    own: list[FlatParameters]  # what the module itself needs; grows when it uses a parameter of another unit

    @property
    def needed(self) -> list[FlatParameters]:
        """What must be whole: a module around it may continue with its own parameters when this one is done."""
        return [unit for call in (*self.enclosing, self) for unit in call.own]


@dataclass(eq=False)
class Recording:
    """The calls of one micro-batch, or of one forward outside of any."""

    calls: list[ModuleCall] = field(default_factory=list)
    inside: list[ModuleCall] = field(default_factory=list)  # those that now compute, the outermost first
    is_micro_batch: bool = False  # else the next forward begins a recording of its own
    computed: bool = False  # forward or backward: other ranks may have gathered with this one
    keeps_all: bool = False  # a backward made a graph, and what goes through that may need everything

    def begin(self, own: list[FlatParameters]) -> ModuleCall:
        """A call begins, of a module that needs these."""
        call = ModuleCall(tuple(self.inside), own)
        self.inside.append(call)
        self.calls.append(call)
        return call


def needed_by(calls: Iterable[ModuleCall]) -> set[FlatParameters]:
    """All that these need."""
    return {unit for call in calls for unit in call.needed}


def first_with_parameters(calls: Iterable[ModuleCall]) -> ModuleCall | None:
    """The first of these that needs parameters of its own."""
    return next((call for call in calls if call.own), None)


def who_needs_what(
    model: nn.Module, modules: Sequence[Sequence[nn.Module]], units: Sequence[FlatParameters]
) -> dict[nn.Module, list[FlatParameters]]:
    """For each module of a unit, and for the model, the units that it needs beside those of modules within it.

    The model is always among them: what it uses beside modules shows when it does.

    A tied parameter has several names, and is needed by whatever module has one of them.
    """
    unit_of = {parameter: unit for unit in units for parameter in unit.parameters}
    names = {module: name for name, module in model.named_modules()}
    inner = sorted((module for group in modules for module in group), key=lambda module: -len(names[module]))
    needs: dict[nn.Module, dict[FlatParameters, None]] = {module: {} for module in (model, *inner)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter not in unit_of:
            continue  # it stays whole
        owner = next((module for module in inner if name.startswith(f"{names[module]}.")), model)
        needs[owner][unit_of[parameter]] = None
    return {module: list(own) for module, own in needs.items() if own or module is model}


def tensors_in(output: object) -> Iterator[Tensor]:
    """All tensors of what a module gives: a tensor, or one in tuples, lists, dicts, dataclasses and other objects."""
    seen: set[int] = set()
    rest = [output]
    while rest:
        for leaf in tree_leaves(rest.pop()):
            if isinstance(leaf, Tensor):
                yield leaf
            elif hasattr(leaf, "__dict__") and not isinstance(leaf, (type, nn.Module)) and id(leaf) not in seen:
                seen.add(id(leaf))
                rest.append(list(vars(leaf).values()))
            elif is_dataclass(leaf) and not isinstance(leaf, type):  # with slots
                rest.append([getattr(leaf, each.name) for each in fields(leaf)])


def in_backward() -> bool:
    """Whether autograd is at work: what runs forward then, recomputes."""
    return torch._C._current_graph_task_id() != -1

"""When which unit of FSDP is needed: the passes through modules, and what each of them needs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .unit import Unit, replace, split


@dataclass(frozen=True, eq=False)
class Visit:
    """One pass through a module: of a unit, or of what the units leave."""

    around: tuple["Visit", ...]  # visits of modules that it lies within, the outermost first
    own: list[Unit]  # what the module itself needs; grows when it uses a parameter of another unit

    @property
    def needs(self) -> list[Unit]:
        """What must be whole: a module around it may go on with its own parameters when this one is done."""
        return [unit for visit in (*self.around, self) for unit in visit.own]


def make_units(
    model: nn.Module,
    named: dict[str, nn.Parameter],
    modules: Sequence[Sequence[nn.Module]],
    make: Callable[[dict[str, nn.Parameter]], Unit],
) -> list[Unit]:
    """A unit for each group of modules, and before them one for what they leave; who first has a parameter owns it.

    Their parameters take the place of those in `model`, which are `named`.
    """
    left, units = dict(named), []
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

    The model is always among them: what it uses beside modules shows when it does.

    A tied parameter has several names, and is needed by whatever module has one of them.
    """
    unit_of = {parameter: unit for unit in units for parameter in unit.parameters}
    names = {module: name for name, module in model.named_modules()}
    inner = sorted((module for group in modules for module in group), key=lambda module: -len(names[module]))
    needs: dict[nn.Module, dict[Unit, None]] = {module: {} for module in (model, *inner)}
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
                rest.append([getattr(leaf, field.name) for field in fields(leaf)])


def in_backward() -> bool:
    """Whether autograd is at work: what runs forward then, recomputes."""
    return torch._C._current_graph_task_id() != -1

"""What a checkpoint holds: of each parameter the master, and what the optimizer remembers of it.

An optimizer remembers two kinds of things: tensors with a value for each element, as Adam's moments are, which are cut
where the master is cut; and numbers, as Adam's count of steps is, which are the same wherever a piece of it is.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import GradientSync, ParameterShard
from reference.errors import BadInput
from reference.memory.state_names import state_names

from .chunk import Chunk
from .whole_matrices import WholeMatrices

State = Mapping[nn.Parameter, Mapping[str, Any]]
"""What an optimizer remembers, by master and by name."""


@dataclass(frozen=True)
class SavedParameter:
    """All that a checkpoint knows of a parameter, but its elements."""

    shape: tuple[int, ...]  # of the whole parameter
    dtype: str  # of its master
    elements: dict[str, str]  # what the optimizer has for each element: dtypes by name
    numbers: dict[str, tuple[float, str | None]]  # what it has once: by name, and the dtype of what is a tensor

    @classmethod
    def of(cls, part: ParameterShard, elements: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> "SavedParameter":
        """Say of a part what would be said of any other part of the same parameter."""
        return cls(
            tuple(part.shape),
            _name(part.master.dtype),
            {name: _name(x.dtype) for name, x in elements.items()},
            {name: (x.item(), _name(x.dtype)) if isinstance(x, Tensor) else (x, None) for name, x in numbers.items()},
        )

    @classmethod
    def from_json(cls, shape: list, dtype: str, elements: dict, numbers: dict) -> "SavedParameter":
        """What became of one in a text."""
        return cls(tuple(shape), dtype, elements, {name: tuple(number) for name, number in numbers.items()})

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def saved_parts(form: GradientSync, optimizer: Optimizer) -> tuple[ParameterShard, ...]:
    """What is saved: the parts of a form; and what an optimizer has for whole matrices, which is on their owners."""
    return (*form.parts, *(optimizer.parts if isinstance(optimizer, WholeMatrices) else ()))


def describe(parts: Iterable[ParameterShard], state: State) -> dict[str, SavedParameter]:
    """What is saved of this rank's parts, by parameter.

    Raises:
        BadInput: if the optimizer remembers something that is neither a number nor a tensor of one for each element.
    """
    once = _numbers(parts, state)
    return {part.name: SavedParameter.of(part, *_split(part, state, once)) for part in _not_empty(parts)}


def merge(descriptions: Iterable[Mapping[str, SavedParameter]]) -> dict[str, SavedParameter]:
    """The whole model, as its ranks describe it.

    Raises:
        BadInput: if two of them say different things of a parameter.
    """
    whole: dict[str, SavedParameter] = {}
    for rank, described in enumerate(descriptions):
        for name, saved in described.items():
            if whole.setdefault(name, saved) != saved:
                known = whole[name]
                raise BadInput(f"ranks do not agree about {name}: rank {rank} has {saved!r}, another one {known!r}")
    return whole


def difference(there: Mapping[str, SavedParameter], here: Mapping[str, SavedParameter]) -> str | None:
    """The first parameter in which a checkpoint and this run differ, in a few words; None if there is none."""
    for name in sorted(there.keys() | here.keys()):
        if name not in here:
            return f"it has {name}, {there[name]}, and this model has not"
        if name not in there:
            return f"this model has {name}, {here[name]}, and it has not"
        if str(there[name]) != str(here[name]):
            return f"{name} is {there[name]} there and {here[name]} here"
    return None


def lacking(parts: Iterable[ParameterShard], optimizer: Optimizer, saved: Mapping[str, SavedParameter]) -> str | None:
    """What was kept of a parameter for which this optimizer needs more, and what it needs; None if there is none.

    Where nothing was kept of a parameter, the optimizer begins anew.
    """
    saved_of = {part.master: saved[part.name] for part in _not_empty(parts)}
    for group in optimizer.param_groups:
        options = group | ({"capturable": False} if "capturable" in group else {})  # else it takes steps on GPUs alone
        masters = [master for master in group["params"] if master in saved_of]
        needed = {dim: state_names(_maker(optimizer), options, dim) for dim in {master.dim() for master in masters}}
        for master in masters:
            known = saved_of[master]
            more = [name for name in needed[master.dim()] if name not in known.elements]
            if more and (known.elements or known.numbers):
                return f"{', '.join(known.elements) or 'nothing'}; this one needs {', '.join(more)}"
    return None


def held_values(parts: Iterable[ParameterShard], state: State) -> dict[str, tuple[ParameterShard, Tensor]]:
    """What this rank has, by the name in the checkpoint: of which part, and its elements, flat; views if possible."""
    once, found = _numbers(parts, state), {}
    for part in _not_empty(parts):
        elements, _ = _split(part, state, once)
        for name, values in {None: part.master, **elements}.items():
            found[_key(part, name)] = part, values.detach().flatten()
    return found


def held_chunks(parts: Iterable[ParameterShard], state: State) -> dict[str, Chunk]:
    """The same, as DCP wants to see it."""
    return {name: Chunk(part, values) for name, (part, values) in held_values(parts, state).items()}


def empty_chunks(parts: Iterable[ParameterShard], saved: Mapping[str, SavedParameter]) -> dict[str, Chunk]:
    """Room on the CPU for what this rank is to load. Padding is not loaded, and stays zero."""
    chunks = {}
    for part in _not_empty(parts):
        known = saved[part.name]
        for name, dtype in {None: known.dtype, **known.elements}.items():
            room = torch.zeros(part.end - part.begin, dtype=getattr(torch, dtype))
            chunks[_key(part, name)] = Chunk(part, room)
    return chunks


@torch.no_grad()
def install(
    parts: Iterable[ParameterShard],
    optimizer: Optimizer,
    saved: Mapping[str, SavedParameter],
    chunks: Mapping[str, Chunk],
) -> None:
    """Put what was loaded into masters and optimizer. The hyperparameters stay those of this run."""
    state: dict[nn.Parameter, dict[str, Any]] = {}
    for part in _not_empty(parts):
        known, shape = saved[part.name], part.master.shape
        part.master.copy_(chunks[_key(part)].held.view(shape))
        elements = {name: chunks[_key(part, name)].held.view(shape) for name in known.elements}
        state[part.master] = elements | {name: _number(*number) for name, number in known.numbers.items()}
    _remember(optimizer, state)


def _remember(optimizer: Optimizer, state: State) -> None:
    """Let an optimizer remember this, and nothing else, wherever it keeps its state."""
    groups = optimizer.state_dict()["param_groups"]  # where parameters are numbers
    numbers = (number for group in groups for number in group["params"])
    masters = (master for group in optimizer.param_groups for master in group["params"])
    numbered = {number: state[master] for number, master in zip(numbers, masters, strict=True) if state.get(master)}
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})
    for master, values in state.items():
        for name, value in values.items():
            now = optimizer.state[master][name]
            if isinstance(value, Tensor) and now.dtype != value.dtype:  # cast to the dtype of the master, as torch does
                optimizer.state[master][name] = value.to(now.device)


def _maker(optimizer: Optimizer) -> Callable[[nn.Parameter], Optimizer]:
    """What makes another optimizer of the same class and options; what an optimizer says itself, if it has `make`."""
    if make := getattr(optimizer, "make", None):
        return make
    kind = type(optimizer)
    taken = inspect.signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in taken}
    return lambda parameter: kind([parameter], **options)


def _split(part: ParameterShard, state: State, once: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimizer has for each element of a part, and what it has once."""
    elements, numbers = {}, {}
    for name, value in state.get(part.master, {}).items():
        if isinstance(value, Tensor) and value.shape == part.master.shape and name not in once:
            elements[name] = value
        elif isinstance(value, (int, float)) or (isinstance(value, Tensor) and not value.dim()):
            numbers[name] = value
        elif value is not None:
            raise BadInput(f"the optimizer's {name} of {part.name} is neither a number nor one for each element")
    return elements, numbers


def _numbers(parts: Iterable[ParameterShard], state: State) -> set[str]:
    """Names of tensors that are one number. A parameter of shape [] alone does not show which they are."""
    of_shaped = (item for part in parts if part.master.dim() for item in state.get(part.master, {}).items())
    return {name for name, value in of_shaped if isinstance(value, Tensor) and not value.dim()}


def _number(value: float, dtype: str | None) -> Any:
    return value if dtype is None else torch.tensor(value, dtype=getattr(torch, dtype))


def _not_empty(parts: Iterable[ParameterShard]) -> Iterable[ParameterShard]:
    """A parameter without elements belongs to no rank once it is cut."""
    return (part for part in parts if part.begin < part.end)


def _key(part: ParameterShard, name: str | None = None) -> str:
    """What elements are called in the checkpoint: of the master, or of what the optimizer remembers by `name`."""
    return f"master.{part.name}" if name is None else f"state.{name}.{part.name}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""The rank's side of grading: load the learner's text, call its function on this rank's share of every case, report.

This runs in the learner's process and therefore proves nothing by itself: what it reports is plain data, and all
comparing is done by the owner, from outside.
"""

import ast
import contextlib
import functools
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import aliases, integrity, meters

_COURSE = ("reference", "puzzles", "visualizations", "rankwise")
_RUNS = ("reference.cluster.", "reference.trace.", "reference.errors.", "puzzles.grading.")  # what runs a rank
MAX_BYTES = 1 << 28  # of one tensor that is reported
_DTYPES = {torch.bool, torch.bfloat16} | {getattr(torch, f"{k}{b}") for k in ("int", "uint") for b in (8, 16, 32, 64)}
_DTYPES |= {torch.float16, torch.float32, torch.float64}


@dataclass(frozen=True)
class Job:
    """What every rank is asked to do.

    Attributes:
        source, filename: the solution's text, and the name that its lines go by.
        entry: the function to call in it.
        drive: how, see `puzzles.grading.drives`.
        wants_group: pass the group as `group`.
        meters: names of the meters to run, see `puzzles.grading.meters`.
        new: look whether results share memory with arguments.
        members: for each case, the global ranks of its group; None for all.
        given: by module of the course, the names that the text may import from it.
    """

    source: str
    filename: str
    entry: str
    drive: Callable[..., dict[str, Any]]
    wants_group: bool
    meters: tuple[str, ...]
    new: bool
    members: tuple[tuple[int, ...] | None, ...]
    given: dict[str, tuple[str, ...]]


def run(job: Job, inputs: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Run all cases on this rank, with its own arguments by name for each case; None where it is not in the group.

    Returns "cases": for each case what `_report` says, None where this rank is not in the group; "patched": names of
    functions that were replaced while the learner's code ran; and "left": switches that it has left in another state.
    """
    before, switches = integrity.snapshot(), integrity.switches()
    groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(job.members) if ranks is not None}
    if groups:
        dist.barrier()  # new_group returns while others still connect: no rank may be done before they are
    groups[None] = dist.group.WORLD
    reports = []
    with concealed(job.given), _module(job) as module:
        function = getattr(module, job.entry)
        for members, arguments in zip(job.members, inputs, strict=True):
            reports.append(None if arguments is None else _report(job, function, arguments, groups[members]))
    left = [name for name, value in integrity.switches().items() if value != switches[name]]
    return {"cases": reports, "patched": integrity.changed(before), "left": left}


@contextlib.contextmanager
def concealed(given: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Take the course out of what can be imported, but for what runs a rank and the names that are `given`.

    A module of which names are given has these alone. So there is no answer to be found; the files can't be read.
    """
    hidden = {name: module for name, module in sys.modules.items() if name.startswith(_COURSE) and _of_course(name)}
    shown: dict[str, ModuleType] = {}
    for home, names in given.items():
        for parent in itertools.accumulate(home.split("."), "{}.{}".format):
            shown.setdefault(parent, ModuleType(parent))
        for name in names:
            setattr(shown[home], name, getattr(hidden[home], name))
    for module in shown.values():
        module.__path__ = []  # nothing more is to be found in it
    runs = {name: module for name, module in hidden.items() if f"{name}.".startswith(_RUNS)}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(shown | runs)
    try:
        yield
    finally:
        for name in shown:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def _of_course(name: str) -> bool:
    return name.partition(".")[0] in _COURSE


def _report(job: Job, function: Callable[..., Any], arguments: dict[str, Any], group: Any) -> dict[str, Any]:
    """One case: the values, what the meters say, and which of this rank's calls belong to it (ticks from, to)."""
    readings: dict[str, float] = {}
    shared: list[str] = []
    measured = _noticed(meters.measured(function, job.meters, readings, job.filename))
    if job.new:
        measured = aliases.watched(measured, shared)
    if job.wants_group:
        arguments = {**arguments, "group": group}
    begin = _tick()
    values = job.drive(measured, arguments)
    values.pop("group", None)
    copies = len(job.members) > 1  # a later case may change tensors
    told = {name: described(value, copies) for name, value in values.items()}
    return {"values": told, "ticks": (begin, _tick()), "shared": shared, **readings}


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The learner's function, and nothing else, as the caller's own code."""

    @functools.wraps(function)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        with dist.group.WORLD.recorder.noticing():
            return function(*args, **kwargs)

    return noticed


def _tick() -> int:
    return dist.group.WORLD.recorder.tick


def program(source: str) -> ast.Module:
    """The text as `style.py` reads it and ranks run it: with nothing to do below `if __name__ == "__main__":`.

    What is not read never runs, whatever the text makes of `__name__`. Raises what Python raises.
    """
    tree = ast.parse(source)
    guard = ast.dump(ast.parse('__name__ == "__main__"', mode="eval").body)
    for node in tree.body:
        if isinstance(node, ast.If) and ast.dump(node.test) == guard:
            node.body = [ast.copy_location(ast.Pass(), node)]
    return tree


@contextlib.contextmanager
def _module(job: Job) -> Iterator[ModuleType]:
    """The learner's text as a module, while it is needed. Tracebacks can show its lines."""
    module = ModuleType("solution")
    module.__file__ = job.filename
    linecache.cache[job.filename] = (len(job.source), None, job.source.splitlines(keepends=True), job.filename)
    sys.modules["solution"] = module
    try:
        exec(compile(program(job.source), job.filename, "exec"), module.__dict__)
        yield module
    finally:
        sys.modules.pop("solution", None)


def described(value: Any, copies: bool, depth: int = 0) -> tuple[str, Any]:
    """A value as plain data: what is not a tensor, a number, a string or a sequence of them becomes its description.

    Args:
        copies: of tensors, so that they stay as they are now.
    """
    if type(value) is Tensor:
        return _tensor(value, copies)
    if value is None or type(value) in (bool, int, float, str):
        return "value", value
    if type(value) in (list, tuple) and depth < 3 and len(value) < 10_000:
        return type(value).__name__, [described(each, copies, depth + 1) for each in value]
    if isinstance(value, dist.Work):
        return "other", "a request: what it brings is in the tensor of its call, once wait() has returned"
    size = f" of {len(value):,}" if isinstance(value, list | tuple) else ""
    return "other", f"a {type(value).__name__}{size}"


def _tensor(value: Tensor, copied: bool) -> tuple[str, Any]:
    usual = value.layout is torch.strided and value.device.type == "cpu" and value.dtype in _DTYPES
    if not usual or value.numel() * value.element_size() > MAX_BYTES:
        return "other", f"a tensor of shape {tuple(value.shape)}, {value.dtype}, {value.layout}, on {value.device}"
    plain = value.detach().contiguous()
    return "tensor", plain.clone() if copied else plain

"""The rank's side of grading: load the learner's text, call its function on this rank's share of every case, report.

This runs in the learner's process and therefore proves nothing by itself: what it reports is plain data, and all
comparing is done by the owner, from outside.
"""

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import integrity, meters

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
        members: for each case, the global ranks of its group; None for all.
        inputs: for each case, by group rank, the arguments by name.
    """

    source: str
    filename: str
    entry: str
    drive: Callable[..., dict[str, Any]]
    wants_group: bool
    meters: tuple[str, ...]
    members: tuple[tuple[int, ...] | None, ...]
    inputs: tuple[list[dict[str, Any]], ...]


def run(job: Job) -> dict[str, Any]:
    """Run all cases on this rank.

    Returns "cases": for each case what `_report` says, None where this rank is not in the group; and "patched": names
    of functions that were replaced while the learner's code ran.
    """
    keep_own(job)
    before, modes = integrity.snapshot(), torch._C._len_torch_function_stack()
    groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(job.members) if ranks is not None}
    if groups:
        dist.barrier()  # new_group returns while others still connect: nobody may be done before they are
    groups[None] = dist.group.WORLD
    reports = []
    with _module(job) as module:
        function = getattr(module, job.entry)
        for members, inputs in zip(job.members, job.inputs, strict=True):
            rank = dist.get_group_rank(groups[members], dist.get_rank()) if _inside(members) else None
            reports.append(None if rank is None else _report(job, function, inputs[rank], groups[members]))
    left = ["torch's stack of modes"] * (torch._C._len_torch_function_stack() != modes)  # entered, and never left
    return {"cases": reports, "patched": integrity.changed(before) + left}


def keep_own(job: Job) -> None:
    """Forget what other ranks are given: whoever reads it here has not received it."""
    for members, inputs in zip(job.members, job.inputs, strict=True):
        ranks = range(dist.get_world_size()) if members is None else members
        inputs[:] = [each if rank == dist.get_rank() else None for rank, each in zip(ranks, inputs, strict=True)]


def _inside(members: tuple[int, ...] | None) -> bool:
    return members is None or dist.get_rank() in members


def _report(job: Job, function: Callable[..., Any], arguments: dict[str, Any], group: Any) -> dict[str, Any]:
    """One case: the values, what the meters say, and which of this rank's calls belong to it (ticks from, to)."""
    readings: dict[str, float] = {}
    measured = _noticed(meters.measured(function, job.meters, readings))
    if job.wants_group:
        arguments = {**arguments, "group": group}
    begin = _tick()
    values = job.drive(measured, arguments)
    values.pop("group", None)
    return {"values": {name: described(value) for name, value in values.items()}, "ticks": (begin, _tick()), **readings}


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


def described(value: Any, depth: int = 0) -> tuple[str, Any]:
    """A value as plain data: what is not a tensor, a number, a string or a sequence of them becomes its description."""
    if type(value) is Tensor:
        return _tensor(value)
    if value is None or type(value) in (bool, int, float, str):
        return "value", value
    if type(value) in (list, tuple) and depth < 3 and len(value) < 10_000:
        return type(value).__name__, [described(each, depth + 1) for each in value]
    if isinstance(value, dist.Work):
        return "other", "a request: what it brings is in the tensor of its call, once wait() has returned"
    size = f" of {len(value):,}" if isinstance(value, list | tuple) else ""
    return "other", f"a {type(value).__name__}{size}"


def _tensor(value: Tensor) -> tuple[str, Any]:
    plain = value.layout is torch.strided and value.device.type == "cpu" and value.dtype in _DTYPES
    if not plain or value.numel() * value.element_size() > MAX_BYTES:
        return "other", f"a tensor of shape {tuple(value.shape)}, {value.dtype}, {value.layout}, on {value.device}"
    return "tensor", value.detach().clone(memory_format=torch.contiguous_format)

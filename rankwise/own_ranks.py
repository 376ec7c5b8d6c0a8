"""Programs that bring their own ranks, run on those of a cluster, so that they can be traced as they are.

A program may be written for `torchrun` (each process runs all of it, and it begins with `init_process_group`), or start
its ranks itself (`mp.spawn`, `mp.Process`). Either way what it takes for new processes of its own are ranks here, whose
group is already there.
"""

import ast
import copy
import inspect
import multiprocessing.process
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reference.cluster.errors import GroupError
from reference.errors import BadInput
from reference.trace import frames

Run = Callable[[list[bytes]], None]  # runs one pickled (function, arguments) on each rank


class Style(StrEnum):
    """How a program comes by its ranks."""

    FUNCTION = "function"  # it has none: a function of it is run on each rank
    TORCHRUN = "torchrun"  # all of it is run on each rank
    STARTS = "starts"  # it starts them itself


_STARTS = {"spawn", "start_processes", "Process"}


def style_of(source: str) -> Style:
    """How a program comes by its ranks, by what it calls, and what its classes are made of.

    A mesh makes a group where there is none, and takes one that is there: so a program that makes a mesh and has a
    function main is as good as one that leaves its group to us.
    """
    tree = ast.parse(source)
    called = {_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bases = {_name(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [getattr(node, "module", None) or "" for node in imports] + [a.name for node in imports for a in node.names]
    if (called | bases) & _STARTS and any("multiprocessing" in name for name in names):
        return Style.STARTS
    has_main = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    makes_mesh = "init_device_mesh" in called and not has_main
    return Style.TORCHRUN if "init_process_group" in called or makes_mesh else Style.FUNCTION


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def run_program(file: str, function: str | None) -> None:
    """On a rank: run a program as `torchrun` would; or all of it but its main part, and then a function of it."""
    with own_group():
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "29500")
        _as_script(file, "__main__" if function is None else "rankwise_trace", function)


def run_given(work: list[bytes]) -> None:
    """On a rank: run what the program gave to the process in whose place it is."""
    import cloudpickle
    import torch.distributed as dist

    with own_group():
        function, args, options = cloudpickle.loads(work[dist.get_rank()])  # here, for it may name what was replaced
        function(*args, **options)


def run_starting(file: str, run: Run) -> int:
    """In the owner: run a program that starts ranks; `run` runs them. Returns how many times it did.

    Raises:
        BadInput: what a process was to run can't be sent to a rank.
    """
    import torch.multiprocessing as mp

    processes = _Processes(run)

    def start_processes(fn: Callable, args: tuple = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
        for rank in range(nprocs):
            processes.add(fn, (rank, *args), {})
        processes.run()
        return _Joined()

    spawn = sys.modules["torch.multiprocessing.spawn"]
    with ExitStack() as stack:
        for owner, name in ((spawn, "start_processes"), (mp, "start_processes"), (mp, "spawn"), (spawn, "spawn")):
            stack.enter_context(patch.object(owner, name, start_processes))
        stack.enter_context(patch.object(multiprocessing.process.BaseProcess, "start", processes.start))
        _as_script(file, "__main__")
        processes.run()
    return processes.runs


class _Processes:
    """The processes that a program has started and that have not run."""

    def __init__(self, run: Run) -> None:
        self._run, self._waiting, self.runs = run, [], 0

    def add(self, function: Callable, args: tuple, options: dict[str, Any]) -> None:
        import cloudpickle

        try:
            self._waiting.append(cloudpickle.dumps((function, args, options)))
        except Exception as error:
            name = getattr(function, "__name__", repr(function))
            what = f"{name} or an argument of it can't be sent to a rank: {error}"
            raise BadInput(f"{what}; give it plain values, or trace with --function what each rank runs") from None

    @property
    def start(self) -> Callable[[Any], None]:
        """What `Process.start` is."""
        processes = self

        def start(process: Any) -> None:
            if type(process).run is multiprocessing.process.BaseProcess.run and process._target:
                processes.add(process._target, process._args, process._kwargs)
            else:
                processes.add(_without_key(process).run, (), {})
            process._popen = _Popen(processes)

        return start

    def run(self) -> None:
        """Run those that wait, all at once."""
        if self._waiting:
            work, self._waiting = self._waiting, []
            self.runs += 1
            self._run(work)


def _without_key(process: Any) -> Any:
    """The same process, whose secret key stays here: it can't be sent."""
    sent = copy.copy(process)
    sent._config = {}
    return sent


class _Popen:
    """What a started process asks whether it is still there: it runs when it is waited for."""

    def __init__(self, processes: _Processes) -> None:
        self._processes, self.pid, self._runs = processes, os.getpid(), processes.runs

    @property
    def sentinel(self) -> int:
        """Something that is ready once the process has ended: a pipe that is closed."""
        self._processes.run()
        read, write = os.pipe()
        os.close(write)
        return read

    def poll(self, *_: Any) -> int | None:
        return 0 if self._processes.runs > self._runs else None

    def wait(self, *_: Any, **__: Any) -> int:
        self._processes.run()
        return 0

    def terminate(self) -> None:
        """Like a process that has ended."""

    kill = close = terminate


class _Joined:
    """What `mp.spawn(join=False)` gives: its processes have run."""

    processes: tuple = ()

    def join(self, *_: Any, **__: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


@contextmanager
def own_group() -> Iterator[None]:
    """Let a program initialise and destroy the group that is there before it."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    destroy = dist.destroy_process_group

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        if backend is not None and "gloo" not in str(backend):
            raise _refusal(f"backend {str(backend)!r}: traced ranks are on the CPU, and speak gloo")
        if world_size not in (-1, None, dist.get_world_size()):
            raise _refusal(f"world_size={world_size}, and there are {dist.get_world_size()} ranks: --ranks sets that")
        if rank not in (-1, None, dist.get_rank()):
            raise _refusal(f"rank={rank} is given to rank {dist.get_rank()}: start processes in the order of ranks")

    def destroy_process_group(group: Any = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    with ExitStack() as stack:
        for owner in (dist, c10d):
            stack.enter_context(patch.object(owner, "init_process_group", init_process_group))
            stack.enter_context(patch.object(owner, "destroy_process_group", destroy_process_group))
        yield


def _place(function: Callable) -> tuple[int, ...]:
    """What a function is given: nothing, its rank, or its rank and how many there are, as many as it must have."""
    given = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    parameters = inspect.signature(function).parameters.values()
    must = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return given[: len(must)]


def _refusal(what: str) -> GroupError:
    """The error of a group that can't be had here, at the line that wants it."""
    where = frames.own(frames.of_stack(sys._getframe(2)))
    call = "init_process_group()"
    return GroupError("no such group", what, rank=int(os.environ["RANK"]), file=where.file, line=where.line, call=call)


def _as_script(file: str, name: str, function: str | None = None) -> None:
    """Run a program, and then a function of it, as `python FILE` would."""
    with patch.object(sys, "argv", [file]), patch.object(sys, "path", [str(Path(file).resolve().parent), *sys.path]):
        try:
            found = runpy.run_path(file, run_name=name)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
            return
        if function is not None:
            if not callable(found.get(function)):
                raise ValueError(f"{file} has no function {function!r}: --function names the one to run")
            found[function](*_place(found[function]))

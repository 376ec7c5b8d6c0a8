"""What makes a forked process a rank: no keyboard, prints for the owner, crashes that name their line, shared cores."""

import builtins
import contextlib
import ctypes
import faulthandler
import io
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..trace import frames
from .faults import NoKeyboard
from .server import LINUX, adopt_orphans, children

KEPT = 256 << 20  # bytes of freed memory that a rank does not give back
LARGE = 32 << 20  # bytes of a tensor that is given back at once all the same, as glibc does by itself
MAPPED = 1 << 18  # bytes of a block that is large where memory is weighed
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}  # audit events


def settle(output: int, dumps: int, *, weighed: bool = False) -> None:
    """Set up the process.

    Args:
        weighed: the kernel will be asked how much memory it has had, so it gives back what it frees.
        output: a pipe for what it prints.
        dumps: a pipe for the stack of its main thread when it crashes, exits or is asked (SIGUSR1).
    """
    redirect(output)
    dump_last_line(dumps)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    random.seed()
    if "numpy.random" in sys.modules:  # numpy imports it when it is asked for; then it is new, and needs no seed
        np.random.seed()
    if weighed:
        give_back_freed_memory()
    else:
        keep_freed_memory()
    if LINUX:
        adopt_orphans()
        with contextlib.suppress(OSError):  # a container may forbid either
            # gloo's thread spins; as batch processes, ranks that share a core give it up to each other in time.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            Path("/proc/self/oom_score_adj").write_text("900")  # rather a rank than the notebook


def keep_freed_memory() -> None:
    """Let the allocator keep what a step of training frees, for the next one. Linux with glibc only.

    Given back to the kernel, each page comes again as a fault that clears it, and that can take a fifth of a step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if LINUX and mallopt:
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def give_back_freed_memory() -> None:
    """Let the allocator give back what is freed of large blocks, at once. Linux with glibc only."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if LINUX and mallopt:
        mallopt(_M_MMAP_THRESHOLD, MAPPED)
        mallopt(_M_TRIM_THRESHOLD, MAPPED)


def redirect(output: int) -> None:
    """No keyboard, and prints to the owner."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "replace", line_buffering=True) for fd in (1, 2)
    )

    def no_input(prompt: object = "") -> NoReturn:
        raise NoKeyboard

    builtins.input = no_input


def move(path: list[str], directory: str) -> None:
    """Stand where the owner stands: its module path, its working directory."""
    sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(directory)


def dump_last_line(dumps: int) -> None:
    """Write the main thread's stack when the process ends by itself, or is asked where it stands."""
    file = os.fdopen(dumps, "wb", 0)
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    faulthandler.register(signal.SIGTERM, file, all_threads=False, chain=True)
    leave, rank = os._exit, os.getpid()

    def exit_and_dump(status: int) -> NoReturn:
        if os.getpid() == rank:  # not a child of it
            faulthandler.dump_traceback(file, all_threads=False)
        leave(status)

    os._exit = exit_and_dump


def on_start_of_child(callback: Callable[[frames.Frame], None]) -> None:
    """Call `callback` with the caller's line whenever this process starts another one."""

    def listen(event: str, arguments: object) -> None:
        if event in _STARTS and (where := frames.own(frames.of_stack(sys._getframe(1)))).file:
            callback(where)

    sys.addaudithook(listen)


def has_children() -> bool:
    """True where the process may have children, running or dead. False where one can't know."""
    if not LINUX:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def running_threads() -> int:
    """Threads of Python, without those of C++ that have only passed through it."""
    return sum(not isinstance(thread, threading._DummyThread) for thread in threading.enumerate())


def running_children() -> list[str]:
    """What children that run on are: their command lines. Not the helpers that Python keeps for its shared memory and,
    from 3.14 on, to fork in its place; but what this one has forked."""
    found = []
    for pid in children(os.getpid()):
        command = _command(pid)
        if "multiprocessing.forkserver" in command:
            found += ["a process of multiprocessing"] * len(children(pid))
        elif command and "multiprocessing.resource_tracker" not in command:
            found.append("a fork of the rank" if command == _command(os.getpid()) else command)
    return found


def _command(pid: int) -> str:
    """The command line of a running process, "" for one that is gone or only waits to be reaped."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
    return "" if rest.split()[0] == "Z" else " ".join(command.split()) or name  # none while a program is loaded

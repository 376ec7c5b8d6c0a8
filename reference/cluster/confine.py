"""Confine a rank that runs code one does not trust: it may compute and communicate, and touch nothing else.

Two walls. The kernel's (Landlock, Linux 5.13 and later) stops writes to files and signals to other processes, whatever
they come from. Python's audit hooks (PEP 578) stop the same and more where the kernel can't, and say what was tried.
A hook can't be removed once it is there. Neither is a sandbox for hostile code; both stop what a learner would try.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = 8 << 30  # bytes of data of one rank

_RULESET, _RULE, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_NO_NEW_PRIVILEGES = 38
_PATH_BENEATH = 1
_WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # write to files, remove, make: of ABI 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # link or rename into another directory: of ABI 2; truncate: of ABI 3
_SCOPE_SIGNAL = 1 << 1

_REFUSED = {
    "os.system": "start programs",
    "subprocess.Popen": "start programs",
    "os.exec": "start programs",
    "os.posix_spawn": "start programs",
    "os.spawn": "start programs",
    "os.fork": "start processes",
    "os.forkpty": "start processes",
    "os.kill": "send signals",
    "os.killpg": "send signals",
    "signal.pthread_kill": "send signals",
    "socket.connect": "open connections of its own",
    "socket.bind": "open connections of its own",
    "ctypes.dlopen": "call C functions",
    "ctypes.dlsym": "call C functions",
    "gc.get_objects": "search the interpreter's memory",
    "gc.get_referrers": "search the interpreter's memory",
    "sys.addaudithook": "watch the interpreter",
}
_CHANGED = {  # audit event: which of its arguments are paths of what it changes
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "os.removexattr": (0,),
    "os.rename": (0, 1),
    "os.link": (0, 1),  # two names of one file: to write to the new one is to write to the old one
    "os.symlink": (1,),
    "sqlite3.connect": (0,),
}


def confine(scratch: str, refuse: Callable[[str], Exception]) -> None:
    """Confine this process for good.

    Args:
        scratch: the one directory in which files may be written.
        refuse: makes the exception to raise where code reaches outside, of a sentence that says how it did.
    """
    os.environ["TMPDIR"] = scratch
    sys.dont_write_bytecode = True  # it could not store what it compiles, and would be refused for trying to
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if sys.platform == "linux":
        landlock([scratch, os.devnull])
    sys.addaudithook(hook(scratch, refuse))


def hook(scratch: str, refuse: Callable[[str], Exception]) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that refuses what reaches outside."""
    root = os.path.realpath(scratch) + os.sep

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            raise refuse(f"this code may not {_REFUSED[event]} ({event})")
        if event == "open":
            path, _, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if writes and not isinstance(path, int) and not inside(path, root):
                raise refuse(f"this code may not write files ({path!r})")
        for position in _CHANGED.get(event, ()):
            if not inside(arguments[position], root):
                raise refuse(f"this code may not change files ({event} {arguments[position]!r})")

    return audit


def inside(path: Any, root: str) -> bool:
    """True for a path below `root`, and for the null device."""
    real = os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return (real + os.sep).startswith(root) or real == os.devnull


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
    """What the kernel knows of Landlock: 0 for nothing."""
    return max(0, ctypes.CDLL(None).syscall(_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def landlock(writable: list[str]) -> bool:
    """Let this process write below `writable` only, and signal only itself. False where the kernel can't."""
    libc, version = ctypes.CDLL(None, use_errno=True), landlock_version()
    if version < 1:
        return False
    rights = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = _Ruleset(rights, 0, _SCOPE_SIGNAL if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = libc.syscall(_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if fd < 0:
        return False
    for path in writable:
        parent = os.open(path, os.O_PATH)
        allowed = rights if Path(path).is_dir() else rights & (1 << 1 | _TRUNCATE)
        rule = _Beneath(allowed, parent)
        libc.syscall(_RULE, fd, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(parent)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    locked = libc.syscall(_RESTRICT, fd, ctypes.c_uint32(0)) == 0
    os.close(fd)
    return locked

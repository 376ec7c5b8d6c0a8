"""Landlock: a process gives up rights over files and signals, for good and for all that it starts (Linux 5.13 on).

https://docs.kernel.org/userspace-api/landlock.html. What is not granted below is refused by the kernel, whatever way
the process tries. The larger `version` is, the more kinds of access the kernel knows.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_RULESET, _RULE, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_NO_NEW_PRIVILEGES = 38
_PATH_BENEATH = 1
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # write, remove, make: of version 1
_REFER, _TRUNCATE, _DEVICES = 1 << 13, 1 << 14, 1 << 15  # of versions 2, 3 and 5
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1  # scopes, of version 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """What the kernel knows of Landlock: 0 for nothing."""
    return max(0, ctypes.CDLL(None).syscall(_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def restrict(writable: Sequence[str], readable: Sequence[str]) -> bool:
    """Let this process read and write below `writable`, read below `readable`, start nothing, and signal only itself.

    Returns False where the kernel can't. Paths that do not exist are passed over.
    """
    libc, known = ctypes.CDLL(None, use_errno=True), version()
    if known < 1:
        return False
    changes = _CHANGES | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    handled = changes | _EXECUTE | _READ | _LIST | (_DEVICES if known >= 5 else 0)
    ruleset = _Ruleset(handled, 0, _ABSTRACT_SOCKETS | _SIGNALS if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    fd = libc.syscall(_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if fd < 0:
        return False
    for path in readable:
        _grant(libc, fd, path, _READ | _LIST)
    for path in writable:
        _grant(libc, fd, path, changes | _READ | _LIST)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    locked = libc.syscall(_RESTRICT, fd, ctypes.c_uint32(0)) == 0
    os.close(fd)
    return locked


def _grant(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Add a rule; of a file only the rights that files have."""
    try:
        parent = os.open(path, os.O_PATH)
    except OSError:
        return
    rule = _Beneath(rights if Path(path).is_dir() else rights & (_READ | _WRITE | _TRUNCATE), parent)
    libc.syscall(_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    os.close(parent)

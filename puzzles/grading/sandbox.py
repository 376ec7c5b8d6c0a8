"""Take away from a rank's process what no solution needs: writing files, starting programs, signalling others.

The kernel refuses it (Landlock, Linux 5.13 and newer; see `man landlock`), so it holds for code below Python, too:
`torch.save` and memory-mapped tensors write files without asking Python. It can't be undone; it ends with the rank.
Where there is no Landlock, the rules for texts (`style.py`) and the cluster's own stand alone.
"""

import ctypes
import functools
import os
import struct
import sys

from reference.cluster.ranks import memory_directory

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVILEGES = 38  # prctl

_EXECUTE, _WRITE = 1 << 0, 1 << 1
_CHANGE = sum(1 << bit for bit in range(4, 13))  # remove and make files, directories, sockets, links
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3 of Landlock
_SCOPE_SIGNAL = 1 << 1  # since version 6


@functools.cache
def enter() -> bool:
    """Shut this thread, and all that it starts, in. Returns whether that was possible."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    writes = _WRITE | _CHANGE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = struct.pack("QQQ", _EXECUTE | writes, 0, _SCOPE_SIGNAL if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE, rules, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    for path in (memory_directory(), os.devnull):  # where ranks meet, and nowhere
        _allow(libc, ruleset, path, writes)
    shut = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return shut


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    """Let files be written at and below a path, if it is there."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        access &= _WRITE | _TRUNCATE
    libc.syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=QI", access, descriptor), 0)
    os.close(descriptor)

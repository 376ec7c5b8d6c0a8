"""Namespaces: ranks whose network is their own, and a directory of limited size for each (Linux, no root needed).

The ranks of one generation share a network that has nothing but loopback. So they reach nothing else, and the kernel's
counters of that network say how much they really sent to each other: see `puzzles.grading.witness`. The namespaces
live as long as a process is in them, and need no cleaning up: https://man7.org/linux/man-pages/man7/namespaces.7.html.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

_USER, _NETWORK, _IPC, _MOUNT = 0x10000000, 0x40000000, 0x08000000, 0x00020000
_SHARED = {"user": _USER, "net": _NETWORK, "ipc": _IPC}  # in the order in which they are entered
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
_LOSSLESS = {"tcp_early_retrans": "0", "tcp_rto_min_us": "10000000", "tcp_sack": "0", "tcp_dsack": "0"}
"""Loopback loses nothing. TCP would suspect so of every rank that waits for a processor, and send things twice."""
_RECURSIVE_PRIVATE = 0x4000 | 0x40000
_NO_SUID_NO_DEVICES_NO_EXEC = 2 | 4 | 8
_DUMPABLE = 4  # of prctl
_CAPABILITIES_V3 = 0x20080522
SCRATCH = 16 << 20  # bytes that a rank may have in files


def create() -> dict[str, int]:
    """New namespaces, as open files by kind; {} where the kernel, or its settings, do not allow it."""
    ours, theirs = socket.socketpair()
    user, group = os.getuid(), os.getgid()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            _found(user, group)
            theirs.send(b"1")
            theirs.recv(1)  # until they are held
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        made = ours.recv(1)
        found: dict[str, int] = {}
        if made:
            with contextlib.suppress(OSError):
                found |= {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _SHARED}
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return found


def _found(user: int, group: int) -> None:
    """Make this process the first of its namespaces, with the same user in them, and loopback up. Raises OSError."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    called("unshare", _USER | _NETWORK | _IPC)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    for setting, value in _LOSSLESS.items():
        with contextlib.suppress(OSError):  # an older kernel has not all of them
            Path("/proc/sys/net/ipv4", setting).write_text(value)
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def enter(namespaces: dict[str, int]) -> None:
    """Move this process, which must have one thread, into namespaces. Raises OSError."""
    for kind, fd in namespaces.items():
        called("setns", fd, _SHARED[kind])
    ctypes.CDLL(None).prctl(_DUMPABLE, 1, 0, 0, 0)  # else it could not open its own files in /proc


def private_directory(path: str) -> bool:
    """Put an empty directory of limited size over `path`, which this process alone sees. False where it can't be."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={SCRATCH},mode=700".encode()
    return (
        libc.unshare(_MOUNT) == 0
        and libc.mount(b"none", b"/", None, ctypes.c_ulong(_RECURSIVE_PRIVATE), None) == 0
        and libc.mount(b"rankwise", path.encode(), b"tmpfs", ctypes.c_ulong(_NO_SUID_NO_DEVICES_NO_EXEC), options) == 0
    )


def drop_capabilities() -> None:
    """Give up what a process may do in its own user namespace: change its network, mount, reach into others."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.capset(struct.pack("=Ii", _CAPABILITIES_V3, 0), bytes(24))
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)


def called(name: str, *arguments: int) -> None:
    """A function of the C library. Raises OSError where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

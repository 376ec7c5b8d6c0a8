"""The processes behind `nodes`: one guard, and one first process for the switch and for each node.

    owner ─ guard ─ the switch's first process ─┬─ node 0's first process ─ what was started on node 0
                                                └─ node 1's first process ─ what was started on node 1

The switch and each node have a network, a table of processes and a list of mounts of their own. The kernel kills each
process of such a table when its first process ends, and takes the network away with the last one. So nothing needs
cleaning up, whatever dies, and no process escapes by detaching itself:
https://man7.org/linux/man-pages/man7/pid_namespaces.7.html. Nothing here imports torch.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .namespaces import called
from .server import die_with_parent, received

_USER, _NETWORK, _MOUNT, _PROCESSES = 0x10000000, 0x40000000, 0x00020000, 0x20000000
_RECURSIVE_PRIVATE = 0x4000 | 0x40000
_MAX_REQUEST = 1 << 20  # bytes
_FDS = 4  # of a request: a channel, and the program's stdin, stdout and stderr


def main(owner: int, controls: list[int]) -> None:
    """Be the guard: make all namespaces, and wait until the switch's first process ends.

    Args:
        owner: a file descriptor of the owner's process (pidfd); when that ends, everything does.
        controls: file descriptors of sockets to the owner: the switch's, then one for each node. Each gets a line
            first: {"ready": pid, as the switch sees it} or {"failed": why}.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sockets = [socket.socket(fileno=fd) for fd in controls]
    user, group = os.getuid(), os.getgid()

    def become_root() -> None:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")

    first = _found(sockets[0], _USER | _NETWORK | _MOUNT | _PROCESSES, become_root)
    if first == 0:
        die_with_parent(signal.SIGKILL)
        _mount()
        for control in sockets[1:]:
            _fork_node(control, sockets)
        _first(sockets[0], sockets, owner)
    for sock in sockets:
        sock.close()
    if first:
        os.waitpid(first, 0)


def _found(control: socket.socket, kinds: int, prepare: Callable[[], None] = lambda: None) -> int | None:
    """Make namespaces and fork the first process in them, as `os.fork` does. None where that fails."""
    try:
        called("unshare", kinds)
        prepare()
        first = os.fork()
    except OSError as error:
        _tell(control, failed=str(error))
        return None
    if first:
        _tell(control, ready=first)
    return first


def _fork_node(control: socket.socket, sockets: list[socket.socket]) -> None:
    """From the switch's first process: fork the first process of a node."""
    if os.fork():
        return
    try:
        if _found(control, _NETWORK | _MOUNT | _PROCESSES) == 0:
            _mount()
            _first(control, sockets, None)
    finally:
        os._exit(0)


def _mount() -> None:
    """Let /proc and /sys show what is ours. Where that is forbidden, as in some containers, they stay as they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(b"none", b"/", None, ctypes.c_ulong(_RECURSIVE_PRIVATE), None)
    for kind, path in ((b"proc", b"/proc"), (b"sysfs", b"/sys")):
        libc.mount(kind, path, kind, 0, None)


def _first(control: socket.socket, sockets: list[socket.socket], owner: int | None) -> NoReturn:
    """Be the first process of a switch or a node, until the owner closes `control`, or ends."""
    for other in sockets:
        if other is not control:
            other.close()
    FirstProcess(control, owner).serve()


class FirstProcess:
    """Starts programs on request, hands signals to them, and says how they ended.

    A request is {"argv", "environment", "directory"} with four file descriptors. The first of them is a channel to the
    owner, who gets {"started": pid} or {"failed": why}, then {"ended": exit code}; from it come numbers of signals, one
    byte each, for the program and all of its session. Or it is {"namespace": kind} with a channel: the namespace comes
    back, as an open file.
    """

    def __init__(self, control: socket.socket, owner: int | None) -> None:
        self.control, self.owner = control, owner
        self.running: dict[int, tuple[subprocess.Popen, socket.socket]] = {}
        self.wake, self._signals = socket.socketpair()
        for sock in (self.wake, self._signals):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT):  # the first wakes the loop; an ignored one would be inherited
            signal.signal(number, lambda *_: None)
        self.poll = select.poll()
        for ready in (control.fileno(), self.wake.fileno(), *([] if owner is None else [owner])):
            self.poll.register(ready, select.POLLIN)

    def serve(self) -> NoReturn:
        """Until the owner lets go, or is gone."""
        self.reap()
        while self.step({fd for fd, _ in self.poll.poll()}):
            pass
        os._exit(0)

    def step(self, ready: set[int]) -> bool:
        """React to what is ready. False when the owner is gone."""
        if self.wake.fileno() in ready:
            received(self.wake)
            self.reap()
        for pid, (_, channel) in list(self.running.items()):
            if channel.fileno() in ready:
                self.signal(pid, channel)
        return self.owner not in ready and (self.control.fileno() not in ready or self.take())

    def take(self) -> bool:
        """Do what the next request asks for. False when the owner is gone."""
        try:
            request, fds, _, _ = socket.recv_fds(self.control, _MAX_REQUEST, _FDS)
        except OSError:
            return False
        if not request:
            return False
        plan, channel = json.loads(request), socket.socket(fileno=fds[0])
        if "namespace" in plan:
            with channel, open(f"/proc/self/ns/{plan['namespace']}", "rb") as namespace:
                socket.send_fds(channel, [b"1"], [namespace.fileno()])
        else:
            self.start(plan, channel, fds[1:])
        return True

    def start(self, plan: dict[str, Any], channel: socket.socket, files: list[int]) -> None:
        """Start a program with its three files, and say on `channel` that it runs, or why not."""
        try:
            process = subprocess.Popen(
                plan["argv"],
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
                env=plan["environment"],
                cwd=plan["directory"],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            _tell(channel, failed=str(error))
            channel.close()
        else:
            _tell(channel, started=process.pid)
            self.running[process.pid] = process, channel
            self.poll.register(channel, select.POLLIN)
        for fd in files:
            os.close(fd)

    def signal(self, pid: int, channel: socket.socket) -> None:
        """Hand on what the owner sends. Where it holds the process no longer, that runs on."""
        numbers = received(channel)
        if numbers == b"":
            self.poll.unregister(channel)
        for number in numbers or b"":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def reap(self) -> None:
        """Collect all processes that have ended, and report those that the owner asked for."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in self.running:
                    process, channel = self.running.pop(pid)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    _tell(channel, ended=process.returncode)
                    with contextlib.suppress(KeyError):  # where the owner has let go of it
                        self.poll.unregister(channel)
                    channel.close()


def _tell(channel: socket.socket, **message: int | str) -> None:
    """Send one message to the owner, who may be gone."""
    with contextlib.suppress(OSError):
        channel.send(json.dumps(message).encode())

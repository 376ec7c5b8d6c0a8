"""The fork server: one process that has imported torch, and forks ranks from itself.

A Python that starts from nothing needs a second or more to import torch; a fork of one that has it needs
milliseconds and shares its memory. One server serves every cluster of its owner. It runs no code of the caller, so
it has one thread, no process group and nothing to leak into its children.

Nobody outlives the owner. The server sees the owner's death (the end of the control socket, and on Linux the
owner's pidfd), kills every rank with all its descendants, and ends. A rank dies with the server (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
MAX_FDS = 250  # SCM_MAX_FD is 253
MAX_REQUEST = 1 << 20


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send `number` when the parent dies; 0 takes that back. Nothing outside Linux."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets lost. Nothing outside Linux."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, or none where there is no /proc."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(c) for t in tasks for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, nearest first."""
    below = children(pid)
    return below + [d for child in below for d in descendants(child)]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


@dataclass
class Generation:
    """The ranks of one cluster from one start to the next."""

    channel: socket.socket  # to the owner: pids and exits; its end means "kill these ranks"
    alive: dict[int, int] = field(default_factory=dict)  # pid -> rank
    doomed: bool = False

    def tell(self, **message: Any) -> None:
        """Send one message to the owner, who may be gone."""
        try:
            self.channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.doomed = True


class Server:
    """Forks generations of ranks on request, reports how they end, kills them when their channel closes."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self.control = control
        self.generations: list[Generation] = []
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.owner_fd = os.pidfd_open(owner) if hasattr(os, "pidfd_open") else -1
        if self.owner_fd >= 0:
            self.poll.register(self.owner_fd, select.POLLIN)
        self.wake, wake = socket.socketpair()
        self.wake.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(self.wake, select.POLLIN)

    def serve(self) -> None:
        """Until the owner is gone."""
        try:
            while self.step({fd for fd, _ in self.poll.poll()}):
                pass
        finally:
            self.end(self.generations)

    def step(self, ready: set[int]) -> bool:
        """React to what is ready. False when the owner is gone."""
        if self.owner_fd in ready:
            return False
        if self.wake.fileno() in ready:
            self.drain(self.wake)
            self.reap()
        closed = [
            g for g in self.generations if g.doomed or (g.channel.fileno() in ready and not self.drain(g.channel))
        ]
        if closed:
            self.end(closed)
        return self.control.fileno() not in ready or self.fork()

    @staticmethod
    def drain(sock: socket.socket) -> bool:
        """Read what is there. False at the end of the stream."""
        try:
            return bool(sock.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def fork(self) -> bool:
        """Take one request: a JSON description and the file descriptors of the ranks. False when the owner is gone."""
        try:
            request, fds, _, _ = socket.recv_fds(self.control, MAX_REQUEST, MAX_FDS)
        except OSError:
            return False
        if not request:
            return False
        plan = json.loads(request)
        generation = Generation(socket.socket(fileno=fds[0]))
        self.generations.append(generation)
        store = Path(plan["store"])
        store.unlink(missing_ok=True)
        per_rank = [fds[1 + 3 * rank : 4 + 3 * rank] for rank in range(plan["world_size"])]
        for rank, mine in enumerate(per_rank):
            pid = os.fork()
            if pid == 0:
                self.become_rank(rank, plan, mine, keep=set(mine))
            generation.alive[pid] = rank
        for fd in fds[1:]:
            os.close(fd)
        generation.tell(pids=list(generation.alive))
        self.poll.register(generation.channel, select.POLLIN)
        return True

    def become_rank(self, rank: int, plan: dict[str, Any], fds: list[int], keep: set[int]) -> None:
        """In the child: let go of everything of the server, and never return."""
        from .rank import main

        code = 70
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for sock in [self.control, self.wake, self._wake, *(g.channel for g in self.generations)]:
                sock.close()
            for fd in range(3, 3 + max(keep, default=0)):
                if fd not in keep:
                    try:
                        os.close(fd)
                    except OSError:
                        pass
            code = main(rank, plan, *fds)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Collect the dead and report the ranks among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for generation in self.generations:
                if pid in generation.alive:
                    rank = generation.alive.pop(pid)
                    generation.tell(exited=rank, status=os.waitstatus_to_exitcode(status))

    def end(self, generations: list[Generation]) -> None:
        """Kill ranks and everything below them; then close their channels, which tells the owner that they are gone."""
        ending = list(generations)
        for generation in ending:
            for pid in list(generation.alive):
                below = descendants(pid)
                for victim in (pid, *below):
                    kill(victim)
        for generation in ending:
            for pid in list(generation.alive):
                os.waitpid(pid, 0)
                generation.alive.pop(pid)
        self.kill_adopted()
        for generation in ending:
            if generation in self.generations:
                self.generations.remove(generation)
            try:
                self.poll.unregister(generation.channel)
            except (KeyError, ValueError):
                pass
            generation.channel.close()

    def kill_adopted(self) -> None:
        """Kill what the ranks left behind: detached grandchildren are ours now."""
        ours = {pid for g in self.generations for pid in g.alive}
        while strays := set(children(os.getpid())) - ours:
            for stray in strays:
                for victim in (stray, *descendants(stray)):
                    kill(victim)
            for stray in strays:
                try:
                    os.waitpid(stray, 0)
                except ChildProcessError:
                    pass


def main(control_fd: int, owner: int) -> None:
    """Import what every rank needs, then serve."""
    die_with_parent()  # while the import keeps us from watching the owner
    if os.getppid() != owner:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    from . import rank  # noqa: F401  imports torch

    gc.collect()
    gc.freeze()  # the collector of a child must not touch, and so copy, the pages we share
    die_with_parent(0)
    adopt_orphans()
    Server(control, owner).serve()

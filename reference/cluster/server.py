"""The fork server: one process that has imported torch, and forks ranks from itself.

A Python that starts from nothing needs a second or more to import torch; a fork of one that has it needs
milliseconds and shares its memory. One server serves every cluster of its owner. It runs no code of the caller, so
it has one thread, no process group and nothing to leak into its children.

No process outlives the owner. The server notices the owner's death (the end of the control socket, and on Linux a
signal from the kernel), kills every rank with all its descendants, and ends. A rank dies with the server.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from . import namespaces
from .wire import SLEEP

LINUX = sys.platform == "linux"
ORPHANED = signal.SIGHUP  # what the kernel sends the server when its owner dies
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MAX_FDS = 250  # SCM_MAX_FD is 253
_MAX_REQUEST = 1 << 20
_LOOK = None if LINUX else 500  # milliseconds between two looks at the owner, where no signal tells of its death


def die_with_parent(number: int) -> None:
    """Let the kernel send a signal when the parent dies, or one of its threads that made us. Linux only."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets lost. Linux only."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone: by default, the one that ends it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def wait_for(pid: int) -> None:
    """Until a child is gone."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def preload(modules: list[str]) -> None:
    """Import what ranks will want. What can't be imported will say so where it is used."""
    gc.disable()  # what an import makes is no garbage, and to look for some takes a fifth of the time
    for module in modules:
        if module not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    gc.freeze()  # the collector of a child must not touch, and so copy, the pages we share
    gc.enable()


def nameless_file() -> tuple[int, str]:
    """A file that several processes may open by its path. On Linux it has no name: nothing to clean up, ever."""
    if LINUX:
        fd = os.memfd_create("rankwise")
        return fd, f"/proc/self/fd/{fd}"
    return tempfile.mkstemp(prefix="rankwise-")


def received(sock: socket.socket) -> bytes | None:
    """What has come in; nothing at the end of the stream, None where there is more to come, but not now."""
    try:
        return sock.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


@dataclass
class Generation:
    """The ranks of one cluster from one start to the next."""

    channel: socket.socket  # to the owner: pids and exits; from it: SLEEP, WAKE, and an end: "kill these ranks"
    store_fd: int
    store: str  # path of the file through which the ranks find each other
    alive: dict[int, int] = field(default_factory=dict)  # pid -> rank

    def send(self, **message: Any) -> None:
        """Send one message to the owner, who may be gone."""
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def handle(self) -> bool:
        """Do what the owner said last. False where it has let go."""
        said = received(self.channel)
        if said:
            for pid in self.alive:
                os.kill(pid, signal.SIGSTOP if said.endswith(SLEEP) else signal.SIGCONT)
        return said != b""

    def close(self) -> None:
        """Let go of it, which tells the owner that its ranks are gone."""
        os.close(self.store_fd)
        if not LINUX:
            Path(self.store).unlink(missing_ok=True)
        self.channel.close()


class Server:
    """Forks generations of ranks on request, reports how they end, kills them when their channel closes."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self.control, self.owner = control, owner
        self.generations: list[Generation] = []
        self.wake, self._signals = socket.socketpair()
        for sock in (self.wake, self._signals):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        signal.signal(ORPHANED, lambda *_: self.leave() if self.orphaned else None)
        self.poll = select.poll()
        for sock in (control, self.wake):
            self.poll.register(sock, select.POLLIN)

    @property
    def orphaned(self) -> bool:
        """True once the owner is gone."""
        return os.getppid() != self.owner

    def serve(self) -> NoReturn:
        """Until the owner is gone."""
        try:
            while self.step({fd for fd, _ in self.poll.poll(_LOOK)}):
                pass
        except Exception:
            traceback.print_exc()
        self.leave()

    def leave(self) -> NoReturn:
        """End every rank, then this process."""
        self.end(self.generations)
        os._exit(0)

    def step(self, ready: set[int]) -> bool:
        """React to what is ready. False when the owner is gone."""
        if self.wake.fileno() in ready:
            received(self.wake)
            self.reap()
        self.end([g for g in self.generations if g.channel.fileno() in ready and not g.handle()])
        return not self.orphaned and (self.control.fileno() not in ready or self.fork())

    def fork(self) -> bool:
        """Take one request: a JSON description, and file descriptors. False when the owner is gone."""
        try:
            request, fds, _, _ = socket.recv_fds(self.control, _MAX_REQUEST, _MAX_FDS)
        except OSError:
            return False
        if not request:
            return False
        generation = Generation(socket.socket(fileno=fds[0]), *nameless_file())
        self.generations.append(generation)
        self.poll.register(generation.channel, select.POLLIN)
        plan = json.loads(request) | {"store": generation.store}
        preload(plan["preload"])
        size = plan["world_size"]
        users, *networks = fds[1 + 3 * size :] or [-1]
        apart = namespaces.create() if plan["untrusted"] and LINUX else {}
        homes = [{"user": users, "net": network} for network in networks] or [apart]
        try:
            for rank in range(size):
                self.fork_rank(generation, rank, plan, fds[1:], homes[rank * len(homes) // size])
        except (OSError, IndexError) as error:  # no more processes, or no more file descriptors
            generation.send(failed=str(error))
            self.end([generation])
        for fd in (*fds[1:], *apart.values()):
            os.close(fd)
        generation.send(pids=list(generation.alive))
        return True

    def fork_rank(
        self, generation: Generation, rank: int, plan: dict[str, Any], fds: list[int], apart: dict[str, int]
    ) -> None:
        """Fork one rank into the namespaces `apart`, and give it its three file descriptors."""
        mine = (fds[3 * rank], fds[3 * rank + 1], fds[3 * rank + 2])
        server = os.getpid()
        pid = os.fork()
        if pid:
            generation.alive[pid] = rank
            return
        try:
            namespaces.enter(apart)  # first: it would take back what comes next
            die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(0)
            stores = [other.store_fd for other in self.generations if other is not generation]
            self.forget({*fds, *apart.values(), *stores} - {*mine})
            from .rank import main

            main(rank, plan | {"apart": bool(apart)}, *mine)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def forget(self, fds: set[int]) -> None:
        """In a new rank: let go of what is the server's or another rank's."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, ORPHANED):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for sock in (self.control, self.wake, self._signals, *(g.channel for g in self.generations)):
            sock.close()
        for fd in fds:
            os.close(fd)

    def reap(self) -> None:
        """Collect the dead and report the ranks among them."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                for generation in self.generations:
                    if pid in generation.alive:
                        rank = generation.alive.pop(pid)
                        generation.send(exited=rank, status=os.waitstatus_to_exitcode(status))

    def end(self, generations: list[Generation]) -> None:
        """Kill ranks and everything below them; then close their channels, which tells the owner that they are gone."""
        ending = list(generations)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all stand still before the first one ends: one that still
            for generation in ending:  # runs would complain of those that are gone
                for pid in generation.alive:
                    kill(pid, number)
        for generation in ending:
            for pid in generation.alive:
                wait_for(pid)
            self.generations.remove(generation)
        if ending:
            self.kill_adopted()
        for generation in ending:
            self.poll.unregister(generation.channel)
            generation.close()

    def kill_adopted(self) -> None:
        """Kill what the ranks left behind: detached grandchildren are ours now."""
        ranks = {pid for generation in self.generations for pid in generation.alive}
        while strays := set(children(os.getpid())) - ranks:
            for stray in strays:
                for victim in (stray, *descendants(stray)):
                    kill(victim)
            for stray in strays:
                wait_for(stray)


def main(control_fd: int, owner: int, of_main_thread: bool, modules: list[str]) -> None:
    """Import what every rank needs, and these modules, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # While a library is loaded, which may take seconds, only the kernel can end us. But its signal also comes when no
    # more than the thread ends that started us: then, unless that one ends with the owner, look whether he lives.
    # Under `nohup` we inherit SIGHUP ignored, so we say in any case what it does.
    answer = signal.SIG_DFL if of_main_thread else lambda *_: os.getppid() == owner or os._exit(0)
    signal.signal(ORPHANED, answer)
    die_with_parent(ORPHANED)
    if os.getppid() != owner:
        return
    control = socket.socket(fileno=control_fd)
    preload(["reference.cluster.rank", *modules])  # and with the first one torch
    adopt_orphans()
    Server(control, owner).serve()

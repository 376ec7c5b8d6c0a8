"""`Cluster`: N ranks on this machine, kept warm."""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import EllipsisType, TracebackType
from typing import Any, Self

from ..errors import BadInput
from ..trace import Trace
from . import forkserver, idle
from .arguments import Packed, packed
from .call import Last, RunningCall, definition, interrupted
from .errors import ClusterError, RankError
from .nodes import KILL, Nodes
from .ranks import RankMessage, Ranks
from .wire import MessageKind

MAX_RANKS = 32
_START = 60.0  # seconds in which ranks must have come up
_WARM, _NEW = 1.0, 10.0  # seconds without a call, after which ranks sleep; the new ones must have come up before
_PUT_TO_SLEEP = 0.1  # seconds, more than enough to tell ranks to sleep
_LETS_GO = 10.0  # seconds in which a call must have ended whose ranks are gone


class Cluster:
    """N ranks with `torch.distributed` initialised, ready to run functions.

        with Cluster(8) as cluster:
            results = cluster.run(fn, *args)           # [fn's result on rank 0, on rank 1, ...]
            results, trace = cluster.trace(fn, *args)  # and what the ranks said

    `fn` may be a closure, a lambda, a class or a function of a notebook. It runs on every rank at once, with the same
    arguments, but for those that are `EachRank([...])`, one for each. Each call starts in the caller's working
    directory and with its module path, with torch's seed, default dtype and default device of a new process, with
    gradients recorded, prints going to the caller, and no process group but the world; all else stays as the call
    before has left it, such as imported modules. A call that fails raises one `RankError`; the ranks are started again
    and the next call works. No process outlives its owner.
    Ranks that are not called for a while sleep, and cost nothing until they are called again.
    A rank computes with one thread, and with the environment that the caller had when it made its first cluster. On a
    CPU its backend is gloo, under `reference.trace.tap`.

    Args:
        world_size: number of ranks, 1 to 32.
        watch: supervise every call: name deadlocks, mismatches and misused requests at once, at their lines. Then
            `watch.replicas.watch_replicas(model)` in the function also names parameters that drift apart.
        timeout: seconds that one call may take, None for no limit; by default 10 when watched, else 300.
        device: "cpu" for gloo; "cuda" for NCCL with one GPU for each rank.
        preload: modules that the server imports before it forks the ranks, so that a restart does not import them
            again.
        warm_up: "module:function" that each rank runs, without arguments and watched as in a call, before it is
            ready: then the first call finds all that both touch in memory of the rank's own.
        untrusted: the functions are not the owner's own: wall the ranks in (see `confine`), so that they reach nothing
            outside and read no module but Python's, its packages' and those of `preload`; unpickle only plain data.
        nodes: on how many nodes the ranks are, as many on each, in order: machines on this one with a network of their
            own (see `nodes`); None for none. They can be cut off, mended, slowed down and killed while a call runs.
        link: rate of each node's link in each direction.

    Raises:
        BadInput: nodes or a rate that cannot be.
        ClusterError: the cluster can't be had, with the reason.
    """

    def __init__(
        self,
        world_size: int,
        *,
        watch: bool = False,
        timeout: float | EllipsisType | None = ...,
        device: str = "cpu",
        preload: Sequence[str] = (),
        warm_up: str = "",
        untrusted: bool = False,
        nodes: int | None = None,
        link: str = "1 Gb/s",
    ) -> None:
        check_platform()
        check_process()
        check_world_size(world_size)
        check_device(device, world_size)
        check_preload(preload)
        if watch and device != "cpu":
            raise ClusterError('only ranks on device="cpu" can be watched: what runs there runs on NCCL unchanged')
        self.world_size = world_size
        self.timeout = (10.0 if watch else 300.0) if timeout is ... else timeout
        check_timeout(self.timeout)
        self._plan = {"device": device, "watch": watch, "preload": list(preload), "untrusted": untrusted}
        self._plan["warm_up"] = warm_up
        self._nodes = None if nodes is None else self._divided(nodes, link)
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._start()
        if device == "cpu":
            idle.watch_idle(self)

    def _divided(self, nodes: int, link: str) -> Nodes:
        """The nodes of this cluster. Raises BadInput and ClusterError."""
        check_nodes(self.world_size, nodes)
        if self._plan["device"] != "cpu" or self._plan["untrusted"]:
            raise ClusterError('nodes have ranks on device="cpu" that run the code of their owner (untrusted=False)')
        return Nodes(nodes, link)

    def _start(self) -> None:
        self._used = time.monotonic()  # when they were last called, or started
        self._place = surroundings()
        self._ranks = Ranks(self.world_size, self._plan | {"place": self._place}, self._nodes)
        self._ready = 0  # ranks that have come up
        self.unenforced: tuple[str, ...] = ()  # of ranks that run untrusted code: which walls are missing here
        self._dirty = False  # True where they must be started again before the next call

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `fn(*args, **kwargs)` on every rank and return the results, by rank.

        Raises:
            RankError: the call failed; one of its subclasses says how.
        """
        results, _ = self._call(fn, args, kwargs, record=False)
        return results

    def trace(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], Trace]:
        """As `run`, and what the ranks said to each other. Only with `device="cpu"`."""
        if self._plan["device"] != "cpu":
            raise ClusterError('only ranks on device="cpu" can be traced; on GPUs use torch.profiler')
        return self._call(fn, args, kwargs, record=True)

    def survive(self, fn: Callable[..., Any], *args: Any, last: Last | None = None, **kwargs: Any) -> list[Any]:
        """As `run`, where ranks may die: returns the results of those that live, and `Gone` for the others.

        `fn` may end the world's group and begin another one. All ranks are started again afterwards.

        Args:
            last: after which result those are killed that hang. By default the call waits for them.
        """
        results, _ = self._call(fn, args, kwargs, record=False, mortal=True, last=last)
        return results

    def ready(self) -> list[int]:
        """Wait until the ranks are up. Returns their process ids, by rank.

        Raises:
            ClusterError: they did not start.
        """
        with self._held():
            self._ranks.wake()
            self._settle()
            return self.pids

    @property
    def apart(self) -> bool:
        """True where the ranks, once they are up, share a network with no other process."""
        return self._plan["untrusted"] and not any(wall.startswith(("Linux", "a network")) for wall in self.unenforced)

    @property
    def nodes(self) -> Nodes:
        """The nodes that the ranks are on. Raises ClusterError where they are on none."""
        if self._nodes is None:
            raise ClusterError(f"these ranks are on no nodes: make the cluster as Cluster({self.world_size}, nodes=2)")
        return self._nodes

    def cut(self, node: int) -> None:
        """Pull the cable of a node, also while a call runs: packets are lost in both directions."""
        self.nodes.cut(node)

    def mend(self, node: int) -> None:
        """Plug the cable of a node in again."""
        self.nodes.mend(node)

    def slow(self, node: int, rate: str) -> None:
        """Give the link of a node another rate from now on, such as "20 Mb/s"."""
        self.nodes.slow(node, rate)

    def kill(self, node: int) -> None:
        """Kill the ranks of a node, as a power cut would. The next call starts all ranks again."""
        each = self.world_size // self.nodes.count
        for pid in self.pids[self.nodes.known(node) * each :][:each]:
            with suppress(ProcessLookupError):
                os.kill(pid, KILL)

    def renew(self) -> None:
        """Put new ranks in the place of these. Returns at once; they come up while the caller continues."""
        with self._held():
            self._ranks.end()
            self._ranks.close()
            self._start()

    def restart(self) -> None:
        """Start the ranks afresh, so that they import changed modules again.

        Raises:
            ClusterError: the cluster is closed, or another thread's call runs on it.
        """
        with self._held():
            self._restart()

    def _restart(self) -> None:
        self._dirty = True
        self._ranks.kill()
        self._start()
        if self._closed:  # meanwhile, by another thread, which has ended those before
            self._ranks.end()

    def suspend_if_idle(self, after: float | None = None) -> None:
        """Put the ranks to sleep after so many seconds without a call. The next call wakes them."""
        mine = os.getpid() == self._owner and not self._closed
        if after is None:
            after = _WARM if self._ready else _NEW
        if mine and time.monotonic() > self._used + after and self._lock.acquire(blocking=False):
            self._ranks.sleep()
            self._lock.release()

    def close(self) -> None:
        """End the ranks and wait until they are gone. A closed cluster runs nothing; a call of another thread fails."""
        self._closed = True
        if os.getpid() != self._owner:
            self._ranks.close()
            return
        if self._nodes:
            self._nodes.close()
        self._ranks.end()  # so that a call that runs lets go of them
        held = self._lock.acquire(timeout=_LETS_GO)
        self._ranks.kill(show=self._ready == self.world_size)  # else one may complain of another that is gone
        if held:
            self._lock.release()

    def __enter__(self) -> Self:
        if self._closed:
            raise ClusterError("the cluster is closed")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, once they are up."""
        return list(self._ranks.pids)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The ranks for one caller. Raises ClusterError where no caller may have them, or another one has."""
        if os.getpid() != self._owner:
            raise ClusterError("the cluster belongs to the process that made it: make another one in this process")
        held = self._lock.acquire(timeout=_PUT_TO_SLEEP)
        try:
            if self._closed:
                raise ClusterError("the cluster is closed")
            if not held:
                raise ClusterError("the cluster is running another call: use one cluster for each thread")
            yield
        finally:
            if held:
                self._used = time.monotonic()
                self._lock.release()

    def _call(
        self,
        fn: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        *,
        record: bool,
        mortal: bool = False,
        last: Last | None = None,
    ) -> tuple[list[Any], Trace | None]:
        with self._held():
            self._ranks.wake()
            try:
                return self._attempt(packed(fn, args, kwargs, self.world_size), fn, record, mortal, last)
            except (ClusterError, RankError):
                if self._closed:
                    raise ClusterError("the cluster was closed while it ran this call") from None
                raise

    def _attempt(
        self, sent: Sequence[Packed], fn: Callable[..., Any], record: bool, mortal: bool, last: Last | None
    ) -> tuple[list[Any], Trace | None]:
        """What each rank returned, and what they said where that is recorded. Raises RankError and ClusterError."""
        try:
            self._settle()
            self._dirty = True  # until the call has ended well
            call = RunningCall(self._ranks, self.timeout, self._plan, record, mortal, last)
            call.send(sent, self._moved())
            results, trace = call.collect(), call.trace() if record else None
            self._dirty = call.dirty
            return results, trace
        except KeyboardInterrupt:
            error: RankError = interrupted(self._ranks.stacks(list(range(self.world_size))))
        except RankError as found:
            error = found
        if not error.file:
            error.file, error.line = definition(fn)
        if not self._closed:
            with suppress(ClusterError):  # the next call will try again, and say so
                self._restart()
        raise error

    def _settle(self) -> None:
        """Wait until the ranks are up; start them again where one has died since, or something was left behind."""
        while not self._dirty and not self._ranks.quiet:
            self._poll(0)
        if not self._dirty and self._come_up():
            return
        self._restart()
        if not self._come_up():
            self._ranks.drain()
            raise ClusterError(f"the ranks did not start: {self._ranks.failure or 'see what they have printed'}")

    def _come_up(self) -> bool:
        """Wait for ranks that were started. False where one is gone, or takes too long."""
        deadline = time.monotonic() + _START
        while (self._ready < self.world_size or not self._ranks.pids) and not self._dirty:
            self._poll(deadline - time.monotonic())
            self._dirty = self._dirty or time.monotonic() > deadline
        return not self._dirty

    def _poll(self, seconds: float) -> None:
        """Note what idle ranks report: that they are ready, or that they have died."""
        for report in self._ranks.poll(seconds):
            if isinstance(report, RankMessage) and report.kind is MessageKind.READY:
                self._ready += 1
                self.unenforced = tuple(json.loads(report.payload))
            else:
                self._dirty = True

    def _moved(self) -> dict[str, Any]:
        """Where we stand, if we have moved since the last call."""
        before, self._place = self._place, surroundings()
        return {"place": self._place} if self._place != before else {}


def surroundings() -> dict[str, Any]:
    """What a function finds on its rank as it is here: the module path and the working directory."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:  # another process has removed it
        directory = ""
    return {"path": [str(entry) for entry in sys.path], "directory": directory}


def check_platform() -> None:
    """Raises ClusterError on Windows."""
    if os.name == "nt":
        raise ClusterError("there is no fork on Windows: use WSL (https://learn.microsoft.com/windows/wsl)")


def check_process() -> None:
    """Raises ClusterError in a rank."""
    if forkserver.in_rank():
        raise ClusterError("a rank can't have ranks of its own: make the cluster in the process that runs this one")


def check_world_size(world_size: int) -> None:
    """Raises ClusterError for a number of ranks that no cluster has."""
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 1 <= world_size <= MAX_RANKS:
        raise ClusterError(f"a cluster has 1 to {MAX_RANKS} ranks, not {world_size!r}")


def check_nodes(world_size: int, nodes: int) -> None:
    """Raises BadInput for a number of nodes that can't have as many ranks each."""
    if nodes not in range(1, world_size + 1) or world_size % nodes:
        raise BadInput(f"{world_size} ranks can't be divided by {nodes} nodes, so that each has as many")


def check_timeout(timeout: float | None) -> None:
    """Raises ClusterError for a time limit that is none."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and not math.isnan(timeout)
    if timeout is not None and not (number and timeout > 0):
        raise ClusterError(f"timeout is a number of seconds above 0, or None for no limit, not {timeout!r}")


def check_preload(preload: Sequence[str]) -> None:
    """Raises ClusterError for what is no list of names."""
    if not isinstance(preload, list | tuple) or not all(isinstance(module, str) for module in preload):
        raise ClusterError(f'preload is a list of module names, such as ["torch"], not {preload!r}')


def check_device(device: str, world_size: int) -> None:
    """Raises ClusterError where there are not enough GPUs, or no such device."""
    if device == "cuda":
        import torch

        if (count := torch.cuda.device_count()) < world_size:
            raise ClusterError(
                f'device="cuda" gives one GPU to each rank: {world_size} ranks need {world_size} GPUs, here are {count}'
            )
    elif device != "cpu":
        raise ClusterError(f'device is "cpu" or "cuda", not {device!r}')

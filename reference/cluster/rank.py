"""A rank: receives functions, runs them, sends back what they returned or what went wrong."""

import gc
import json
import os
import pkgutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..on_gpus import allow_connections
from ..process_group import connect, drop
from ..trace import frames
from ..trace.tap import BACKEND, HeardCalls, Recorder, Tap, name_by_carrier, register
from . import forkserver, pickling, process, wire
from .confine import confine
from .connecting import connect_in_the_end
from .errors import Forbidden, GroupError, StrayProcess
from .faults import Unpicklable, describe
from .nodes import DEVICE
from .watch.watcher import Watcher
from .wire import MessageKind

_DEFAULT_SEED = 67280421310721  # torch's own, of a process that never set one
_LEAVING = 0.1  # seconds that a child may take to end once its parent has let go of it


def main(rank: int, plan: dict[str, Any], requests: int, output: int, dumps: int) -> None:
    """Become a rank of the generation that `plan` describes, and serve its owner until it hangs up."""
    forkserver.become_rank()
    process.settle(output, dumps, weighed=plan["untrusted"])
    process.move(**plan["place"])
    channel = wire.MessageChannel(socket.socket(fileno=requests))
    world_size = plan["world_size"]
    os.environ.update(environment(rank, world_size, plan["nodes"]))
    recorder = make_recorder(rank, channel, plan)
    store = dist.FileStore(plan["store"], world_size)
    join(rank, world_size, store, plan, recorder)
    if plan["warm_up"]:
        with recorder.recording():
            pkgutil.resolve_name(plan["warm_up"])()
    worker = Worker(rank, channel, recorder, store, plan["place"])
    missing = []
    if plan["untrusted"]:
        scratch = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
        missing = confine(scratch, worker.refuse, alone=plan["apart"])
    channel.send(MessageKind.READY, json.dumps(missing).encode())
    worker.serve()


def environment(rank: int, world_size: int, nodes: int) -> dict[str, str]:
    """What torchrun would set for a rank, on a number of nodes; 0: on none, that is on this machine."""
    on_node = world_size // (nodes or 1)
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank % on_node, "LOCAL_WORLD_SIZE": on_node}
    if nodes:
        numbers |= {"GROUP_RANK": rank // on_node, "GROUP_WORLD_SIZE": nodes}
    return {name: str(number) for name, number in numbers.items()} | ({"GLOO_SOCKET_IFNAME": DEVICE} if nodes else {})


def make_recorder(rank: int, channel: wire.MessageChannel, plan: dict[str, Any]) -> Recorder:
    """A recorder, or one that also watches."""
    return Watcher(rank, channel) if plan["watch"] else Recorder(rank)


def join(rank: int, world_size: int, store: dist.Store, plan: dict[str, Any], recorder: Recorder) -> None:
    """Initialise `torch.distributed`: gloo behind the tap, or NCCL with one GPU for each rank."""
    if plan["device"] == "cuda":
        allow_connections()
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=world_size)
        return
    register(recorder, connect_in_the_end if plan["nodes"] else connect)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size)
    name_by_carrier(dist.group.WORLD)


class Worker:
    """Runs one request after the other, and leaves the process as it found it."""

    def __init__(
        self, rank: int, channel: wire.MessageChannel, recorder: Recorder, store: dist.Store, place: dict[str, Any]
    ) -> None:
        self.rank, self.channel, self.recorder, self.store, self.place = rank, channel, recorder, store, place
        self.group = dist.group.WORLD
        self.ledger = self.group.ledger if isinstance(self.group, Tap) else HeardCalls(rank)
        self.streams = sys.stdout, sys.stderr
        self.process = os.getpid()
        self.calls = 0
        self.group_destroyed_at: frames.Frame | None = None
        self.child_started_at = frames.Frame("", 0, "")
        self.watch_destruction()
        process.on_start_of_child(lambda where: setattr(self, "child_started_at", where))
        threading.excepthook = self.thread_failed

    def serve(self) -> None:
        """Until the owner hangs up."""
        while True:
            try:
                _, _, payload, buffers = self.channel.receive()
            except (EOFError, ConnectionError):
                return
            header, body = wire.split_header(payload)
            self.place = header.get("place", self.place)
            self.begin()
            try:
                self.run(header, body, buffers)
            except BaseException as error:
                if self.forked:
                    self.end_fork(error)
                self.report(error)

    @property
    def forked(self) -> bool:
        """True in a process that `fn` has forked: it is no rank."""
        return os.getpid() != self.process

    def end_fork(self, error: BaseException) -> NoReturn:
        """End a fork of the rank where it leaves `fn`, as any process ends with its program."""
        code = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            self.report(error)
        self.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))

    def begin(self) -> None:
        """A call starts as if its process were new: where its caller is, no groups, torch's own seed and settings."""
        self.calls += 1
        process.move(**self.place)
        self.drop_groups()
        backend, _ = c10d._world.pg_map[self.group]
        c10d._world.pg_map[self.group] = (backend, dist.PrefixStore(f"call {self.calls}", self.store))
        c10d._world.group_count = 1
        self.ledger.clear()
        torch.default_generator.manual_seed(_DEFAULT_SEED)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        sys.stdout, sys.stderr = self.streams

    def run(self, header: dict[str, Any], body: bytes, buffers: list[wire.Buffer]) -> None:
        """Run one request and send its result. Raises what the request raises."""
        fn, args, kwargs = pickling.loads(body, buffers)
        threads = process.running_threads()
        record = header.get("record", False)
        result = self.call(fn, args, kwargs, record, header.get("mortal", False))
        self.flush()
        try:
            payload, out = pickling.dumps(result)
        except Exception as error:
            raise Unpicklable(result, error) from error
        del result
        more = self.ledger.report()
        if left := process.running_threads() - threads:
            more["threads"] = left
        if record:
            more["rows"] = [call.event(self.rank).row() for call in self.recorder.untold]
        self.channel.send(MessageKind.RESULT, wire.with_header(more, payload), out)

    def call(self, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], record: bool, mortal: bool) -> Any:
        """`fn(*args, **kwargs)`, recorded or not, and a look at what it left behind: no group, where ranks may die."""
        file = getattr(getattr(fn, "__code__", None), "co_filename", "")
        noticing = nullcontext() if frames.machinery(file) else self.recorder.noticing()
        with self.recorder.recording() if record else nullcontext(), noticing:
            result = fn(*args, **kwargs)
            if self.forked:
                raise SystemExit
        if not mortal:
            self.check_group()
        self.check_children()
        return result

    def report(self, error: BaseException) -> None:
        """Tell the owner what went wrong."""
        self.flush()
        fault = describe(error, self.rank, self.group_destroyed_at)
        self.channel.send(MessageKind.FAULT, json.dumps(fault).encode())

    def thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Tell the owner of an exception that ended a thread: the main thread may wait for it forever."""
        if failure.exc_value and not isinstance(failure.exc_value, SystemExit):
            self.report(failure.exc_value)

    def refuse(self, what: str) -> Forbidden:
        """The error of untrusted code that reaches outside. The owner is told even if that code catches it."""
        where = frames.own(frames.of_stack(sys._getframe(1)))
        error = Forbidden("forbidden", what, rank=self.rank, file=where.file, line=where.line)
        if where.file:
            self.channel.send(MessageKind.FAULT, json.dumps(describe(error, self.rank)).encode())
        return error

    def flush(self) -> None:
        """Push out what was printed."""
        for stream in self.streams:
            with suppress(OSError, ValueError):
                stream.flush()

    def watch_destruction(self) -> None:
        """Remember the line that destroys the process group."""
        destroy = dist.destroy_process_group

        def destroy_process_group(group: Any = None) -> None:
            destroy(group)
            where = frames.own(frames.of_stack(sys._getframe(1)))
            if where.file:
                self.group_destroyed_at = where

        dist.destroy_process_group = c10d.destroy_process_group = destroy_process_group

    def check_group(self) -> None:
        """Raises GroupError where `fn` destroyed or replaced the world."""
        if dist.is_initialized() and dist.group.WORLD is self.group:
            return
        where = self.group_destroyed_at or frames.Frame("", 0, "")
        raise GroupError(
            "group destroyed",
            "the process group of the cluster was destroyed here",
            "the cluster made it and will end it: remove destroy_process_group()",
            rank=self.rank,
            file=where.file,
            line=where.line,
            call="destroy_process_group()",
        )

    def check_children(self) -> None:
        """Raises StrayProcess where `fn` left child processes running."""
        if not (process.has_children() and process.running_children()):
            return
        gc.collect()  # worker processes of a DataLoader end with it
        patience = time.monotonic() + _LEAVING
        while (running := process.running_children()) and time.monotonic() < patience:
            time.sleep(0.005)
        if running:
            raise StrayProcess(
                "stray process",
                f"fn returned and left {len(running)} process(es) running: {running[0][:60]}",
                "they have been ended: wait for what you start",
                rank=self.rank,
                file=self.child_started_at.file,
                line=self.child_started_at.line,
            )

    def drop_groups(self) -> None:
        """Take down the groups that the call before has made. Not sooner: another rank may still have been joining."""
        for group in [g for g in c10d._world.pg_map if g is not self.group]:
            drop(group)

"""A rank: receives functions, runs them, sends back what they returned or what went wrong."""

import faulthandler
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..trace import frames
from ..trace.tap import BACKEND, Recorder, register
from . import server, wire
from .errors import GroupError, StrayProcess
from .faults import Unpicklable, describe
from .watch.watcher import Watcher
from .wire import Kind

_DEFAULT_SEED = 67280421310721  # torch's own, of a process that never set one


def main(rank: int, plan: dict[str, Any], requests: int, output: int, dumps: int) -> int:
    """Become a rank of the generation that `plan` describes, and serve its owner until it hangs up."""
    settle(output, dumps)
    channel = socket.socket(fileno=requests)
    world_size = plan["world_size"]
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    recorder = make_recorder(rank, channel, plan)
    store = dist.FileStore(plan["store"], world_size)
    join(rank, world_size, store, plan, recorder)
    worker = Worker(rank, channel, recorder, store, plan)
    wire.send(channel, Kind.READY)
    worker.serve()
    return 0


def settle(output: int, dumps: int) -> None:
    """Set up the process: no keyboard, prints to the owner, no core files, crashes named, a fair scheduler."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    file = os.fdopen(dumps, "wb", 0)
    faulthandler.enable(file, all_threads=True)  # a crash names its line
    faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=False)  # and so does a rank that is asked
    leave = os._exit

    def exit_and_tell(status: int) -> NoReturn:
        faulthandler.dump_traceback(file, all_threads=False)
        leave(status)

    os._exit = exit_and_tell
    if server.LINUX:
        # gloo's thread spins; as batch processes, ranks that share a core give it up to each other in time.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        server.adopt_orphans()
        Path("/proc/self/oom_score_adj").write_text("900")  # rather a rank than the notebook
    random.seed()
    np.random.seed()


def make_recorder(rank: int, channel: socket.socket, plan: dict[str, Any]) -> Recorder:
    """A recorder, or one that also watches."""
    return Watcher(rank, channel) if plan["watch"] else Recorder(rank)


def join(rank: int, world_size: int, store: dist.Store, plan: dict[str, Any], recorder: Recorder) -> None:
    """Initialise `torch.distributed`: gloo behind the tap, or NCCL with one GPU for each rank."""
    if plan["device"] == "cuda":
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size)
        return
    register(recorder)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size)


class Worker:
    """Runs one request after the other, and leaves the process as it found it."""

    def __init__(
        self, rank: int, channel: socket.socket, recorder: Recorder, store: dist.Store, plan: dict[str, Any]
    ) -> None:
        self.rank, self.channel, self.recorder, self.store = rank, channel, recorder, store
        self.group = dist.group.WORLD
        self.calls = 0
        self.group_destroyed_at: frames.Frame | None = None
        self.watch_destruction()

    def serve(self) -> None:
        """Until the owner hangs up."""
        reader = wire.Reader(self.channel)
        while True:
            try:
                _, payload, buffers = reader.receive()
            except (EOFError, ConnectionError):
                return
            head, _, body = payload.partition(b"\n")
            self.begin()
            try:
                self.run(json.loads(head), body, buffers)
            except BaseException as error:
                self.report(error)

    def begin(self) -> None:
        """A call starts as if its process were new: its own groups' names, torch's default seed and settings."""
        self.calls += 1
        backend, _ = c10d._world.pg_map[self.group]
        c10d._world.pg_map[self.group] = (backend, dist.PrefixStore(f"call {self.calls}", self.store))
        c10d._world.group_count = 1
        torch.default_generator.manual_seed(_DEFAULT_SEED)
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)

    def run(self, head: dict[str, Any], body: bytes, buffers: list[bytearray]) -> None:
        """Run one request and send its result. Raises what the request raises."""
        if "path" in head:
            sys.path[:] = head["path"]
        fn, args, kwargs = wire.loads(body, buffers)
        result = self.call(fn, args, kwargs, record=head["record"])
        self.flush()
        try:
            payload, out = wire.dumps(result)
        except Exception as error:
            raise Unpicklable(result, error) from error
        del result
        if head["record"]:
            wire.send(self.channel, Kind.EVENTS, json.dumps([call.row() for call in self.recorder.calls]).encode())
        wire.send(self.channel, Kind.RESULT, payload, out)

    def call(self, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], record: bool) -> Any:
        """`fn(*args, **kwargs)`, recorded or not, and a look at what it left behind."""
        threads = threading.active_count()
        with self.recorder.recording() if record else nullcontext():
            result = fn(*args, **kwargs)
        self.check_group()
        self.check_children()
        self.drop_groups()
        if threading.active_count() > threads:
            wire.send(self.channel, Kind.READY, b"dirty")
        return result

    def report(self, error: BaseException) -> None:
        """Tell the owner what went wrong."""
        self.flush()
        fault = describe(error, self.rank, self.group_destroyed_at)
        wire.send(self.channel, Kind.FAULT, json.dumps(fault).encode())

    def flush(self) -> None:
        """Push out what was printed."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass

    def watch_destruction(self) -> None:
        """Remember who destroys the process group."""
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
        pids = [
            pid for pid in server.children(os.getpid()) if (name := _command(pid)) and "resource_tracker" not in name
        ]
        if pids:
            raise StrayProcess(
                "stray process",
                f"fn returned and left {len(pids)} process(es) running: {_command(pids[0])[:60]}",
                "they have been ended: wait for what you start",
                rank=self.rank,
            )

    def drop_groups(self) -> None:
        """Take down the groups that `fn` made."""
        for group in [g for g in c10d._world.pg_map if g is not self.group]:
            dist.destroy_process_group(group)


def _command(pid: int) -> str:
    """The command line of a running process, "" for one that is gone or only waits to be reaped."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    if state == "Z":
        os.waitpid(pid, os.WNOHANG)
        return ""
    return command

"""The tap: a process group that hands every call on to gloo and tells a recorder about it.

It is a Python subclass of `ProcessGroup`, so it sees what nothing above it can: calls from other threads, functional
collectives, autograd, DDP's reducer and FSDP's hooks. It changes no value. A call costs a few microseconds more.

    recorder = Recorder(rank)
    register(recorder)
    dist.init_process_group("tapped", ...)
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from math import prod
from operator import index
from sys import _getframe
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.distributed import ProcessGroup, Work
from torch.distributed import distributed_c10d as c10d

from reference.process_group import PythonGroup, called, connect, members

from .calls import Call, locate
from .events import Op

BACKEND = "tapped"
_FOREVER = timedelta(days=10)  # time limits belong to the owner of the ranks


class Recorder:
    """Keeps the calls of one rank, in program order.

    A subclass may look at a call before it is made (`posted`), make it (`make`), and look at it when the rank begins to
    wait for it (`waiting`) and when that wait has returned (`completed`). It may raise in each.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.on = False
        self.calls: list[Call] = []
        self.tick = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Forget the past, and record what runs inside."""
        self.calls, self.tick, self.on = [], 0, True
        try:
            yield
        finally:
            self.on = False
            for call in self.calls:
                call.release()

    def noticing(self) -> AbstractContextManager[None]:
        """To be entered around the caller's own code: what happens in there is the caller's doing."""
        return nullcontext()

    def posted(self, call: Call) -> None:
        """`call` is about to be made."""
        call.number, call.posted = len(self.calls), self.tick
        self.tick += 1
        self.calls.append(call)
        locate(call, _getframe(2))
        call.begin = time.monotonic()

    def make(self, call: Call, run: Callable[[], Work]) -> Work:
        """Make `call`: its request."""
        return run()

    def waiting(self, call: Call) -> None:
        """The rank is about to wait for `call`."""

    def completed(self, call: Call) -> None:
        """The rank's wait for `call` has returned."""
        if call.completed is None:
            call.completed, call.end = self.tick, time.monotonic()
            call.release()
            self.tick += 1

    def future_taken(self, call: Call) -> None:
        """Somebody (DDP's reducer) waits for `call` where we can't see it."""


class Ledger:
    """Counts what one rank says on one group, so that one can tell afterwards whether everything was heard.

    `messages[src, dst, tag]` are those sent less those received, or yet to be; `src` is None in a receive from anybody.
    Summed over all ranks they are zero where every message met a receive that names its source, and `rounds` are the
    same on every rank where all of them entered every collective.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.clear()

    def clear(self) -> None:
        """Forget the past."""
        self.messages: Counter[tuple[int | None, int, int]] = Counter()
        self.rounds = 0

    def note(self, op: Op, root: int | None, tag: int) -> None:
        """A call is about to be made; `root` is the group rank of its other side, as given."""
        if op is Op.SEND:
            self.messages[self.rank, root, tag] += 1
        elif op is Op.RECV:
            self.messages[root, self.rank, tag] -= 1
        else:
            self.rounds += 1

    def report(self) -> dict[str, Any]:
        """The counts that are not zero, ready for JSON."""
        messages = [[*message, count] for message, count in self.messages.items() if count]
        return ({"messages": messages} if messages else {}) | ({"rounds": self.rounds} if self.rounds else {})


@called(Work)
class TappedWork(Work):
    """The request of a tapped call."""

    def __init__(self, work: Work, call: Call, recorder: Recorder) -> None:
        super().__init__()
        self._work, self.call, self._recorder = work, call, recorder

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Block until the call is done; True."""
        with DisableTorchFunction():
            self._recorder.waiting(self.call)
        done = self._work.wait(timeout) if timeout.total_seconds() > 0 else self._work.wait()
        self._finish()
        return done

    def is_completed(self) -> bool:
        """True once the call is done; asking is a way of waiting."""
        done = self._work.is_completed()
        if done:
            self._finish()
        return done

    def get_future(self) -> torch.futures.Future:
        """The request as a future. Whoever takes it waits out of sight."""
        self._recorder.future_taken(self.call)
        return self._work.get_future()

    def _finish(self) -> None:
        if self.call.op is Op.RECV and self.call.peer is None:
            self.call.peer = self.call.group[self._work._source_rank()]
        with DisableTorchFunction():
            self._recorder.completed(self.call)

    def source_rank(self) -> int:
        """Group rank that an any-source receive heard from."""
        return self._work._source_rank()

    _source_rank = source_rank

    def is_success(self) -> bool:
        """True where the call is done and did not fail."""
        return self._work.is_success()

    def exception(self) -> Any:
        """The error of a failed call."""
        return self._work.exception()

    def result(self) -> list[Tensor]:
        """The tensors of a finished call."""
        return self._work.result()

    def synchronize(self) -> None:
        """As `wait`, for the current stream."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: there are no streams on a CPU."""
        self.wait()


@called(ProcessGroup)
class Tap(PythonGroup):
    """gloo, with a recorder between it and the caller."""

    def __init__(self, carrier: ProcessGroup, ranks: tuple[int, ...], recorder: Recorder) -> None:
        super().__init__(carrier, dist.Backend.GLOO)  # which is asked what it can do
        self.ranks, self.recorder, self.ledger = ranks, recorder, Ledger(carrier.rank())

    def _make(
        self,
        op: Op,
        run: Callable[[], Work],
        inputs: list[Tensor],
        outputs: list[Tensor],
        root: int | None = None,
        tag: int = 0,
        **more: Any,
    ) -> Work:
        """Make a call; while recording, post it and wrap its request. What follows `run` are fields of `Call`."""
        root, tag = None if root is None else index(root), index(tag)  # they may be numpy's, or tensors
        self.ledger.note(op, root, tag)
        if not self.recorder.on:
            return run()
        # A recorder's looks at the tensors are no calls of the caller's: no mode need hear of them.
        with DisableTorchFunction():
            call = Call(op, self.ranks, inputs, outputs, root, tag, group_name=self._name, **more)
            self.recorder.posted(call)
            return self.recorder.make(call, lambda: TappedWork(run(), call, self.recorder))

    # Point to point.

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        run = partial(self.carrier.send, tensors, dst, tag)
        return self._make(Op.SEND, run, tensors, [], dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        run = partial(self.carrier.recv, tensors, src, tag)
        return self._make(Op.RECV, run, [], tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        run = partial(self.carrier.recv_anysource, tensors, tag)
        return self._make(Op.RECV, run, [], tensors, None, tag)

    # One root.

    def broadcast(self, tensors: Any, opts: Any = None, *rest: Any) -> Work:
        tensors, root, opts = _rooted(tensors, opts, dist.BroadcastOptions)
        brings, gets = (tensors, []) if root == self.rank() else ([], tensors)
        run = partial(self.carrier.broadcast, tensors, opts)
        return self._make(Op.BROADCAST, run, brings, gets, root)

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any) -> Work:
        tensors, root, opts = _rooted(tensors, opts, dist.ReduceOptions)
        run = partial(self.carrier.reduce, tensors, opts)
        return self._make(Op.REDUCE, run, tensors, tensors, root, reduce=_name(opts.reduceOp))

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.gather, outputs, inputs, opts)
        return self._make(Op.GATHER, run, inputs, _flat(outputs), opts.rootRank)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        run = partial(self.carrier.scatter, outputs, inputs, opts)
        return self._make(Op.SCATTER, run, _flat(inputs), outputs, opts.rootRank)

    # Everybody.

    def allreduce(self, tensors: Any, opts: Any = None, *rest: Any) -> Work:
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        opts = opts if isinstance(opts, dist.AllreduceOptions) else _with_op(dist.AllreduceOptions(), opts)
        run = partial(self.carrier.allreduce, tensors, opts)
        return self._make(Op.ALL_REDUCE, run, tensors, tensors, reduce=_name(opts.reduceOp))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.allreduce_coalesced, tensors, opts)
        return self._make(Op.ALL_REDUCE, run, tensors, tensors, reduce=_name(opts.reduceOp))

    def allgather(self, outputs: Any, inputs: Any, *opts: Any) -> Work:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        run = partial(self.carrier.allgather, outputs, inputs, *opts)
        return self._make(Op.ALL_GATHER, run, inputs, _flat(outputs))

    def all_gather_single(self, output: Tensor, input: Tensor, *opts: Any) -> Work:
        run = partial(self.carrier._allgather_base, output, input, *opts)
        return self._make(Op.ALL_GATHER, run, [input], [output])

    _allgather_base = all_gather_single

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], *opts: Any) -> Work:
        run = partial(self.carrier.allgather_coalesced, outputs, inputs, *opts)
        return self._make(Op.ALL_GATHER, run, inputs, _flat(outputs))

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any) -> Work:
        run = partial(self.carrier.allgather_into_tensor_coalesced, outputs, inputs, *opts)
        return self._make(Op.ALL_GATHER, run, inputs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Work:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = opts if isinstance(opts, dist.ReduceScatterOptions) else _with_op(dist.ReduceScatterOptions(), opts)
        run = partial(self.carrier.reduce_scatter, outputs, inputs, opts)
        return self._make(Op.REDUCE_SCATTER, run, _flat(inputs), outputs, reduce=_name(opts.reduceOp))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        run = partial(self.carrier._reduce_scatter_base, output, input, opts)
        return self._make(Op.REDUCE_SCATTER, run, [input], [output], reduce=_name(opts.reduceOp))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        run = partial(self.carrier.reduce_scatter_tensor_coalesced, outputs, inputs, opts)
        return self._make(Op.REDUCE_SCATTER, run, inputs, outputs, reduce=_name(opts.reduceOp))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, input: Tensor, out_splits: list[int], in_splits: list[int], *opts: Any
    ) -> Work:
        there, back = self._splits(input, in_splits), self._splits(output, out_splits)
        run = partial(self.carrier.alltoall_base, output, input, out_splits, in_splits, *opts)
        return self._make(Op.ALL_TO_ALL, run, [input], [output], width=_row(input), splits=there, out_splits=back)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any) -> Work:
        there, back = tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)
        run = partial(self.carrier.alltoall, outputs, inputs, *opts)
        return self._make(Op.ALL_TO_ALL, run, inputs, outputs, splits=there, out_splits=back)

    def barrier(self, *args: Any, **options: Any) -> Work:
        run = partial(self.carrier.barrier, *args, **options)
        return self._make(Op.BARRIER, run, [], [])

    def _splits(self, tensor: Tensor, rows: list[int]) -> tuple[int, ...]:
        """Elements for each rank: rows along dim 0, or equal parts."""
        if not rows:
            return (tensor.numel() // self.size(),) * self.size()
        return tuple(row * _row(tensor) for row in rows)


def _row(tensor: Tensor) -> int:
    """Elements of one row along dim 0."""
    return prod(tensor.shape[1:]) if tensor.dim() and tensor.shape[0] else 1


def _flat(lists: list[list[Tensor]]) -> list[Tensor]:
    return [tensor for inner in lists for tensor in inner]


def _name(op: Any) -> str:
    return op.op.name.lower()


def _with_op(opts: Any, op: Any) -> Any:
    if op is not None:
        opts.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    return opts


def _rooted(tensors: Any, opts: Any, make: Callable[[], Any]) -> tuple[list[Tensor], int, Any]:
    """Both spellings, (tensors, options) and (tensor, root), as the first."""
    if isinstance(opts, int):
        root, opts = opts, make()
        opts.rootRank = root
    return ([tensors] if isinstance(tensors, Tensor) else tensors), opts.rootRank, opts


def world_recorder() -> Recorder:
    """The recorder of this rank. Raises RuntimeError where nothing lies between torch.distributed and the caller."""
    if not isinstance(dist.group.WORLD, Tap):
        raise RuntimeError("nothing records what this process says: call it on a rank of a Cluster, in cluster.trace")
    return dist.group.WORLD.recorder


def register(recorder: Recorder) -> None:
    """Make `tapped` a backend of `torch.distributed` in this process, reporting to `recorder`."""

    def create(options: Any, _: Any) -> Tap:
        return Tap(connect(dist.Backend.GLOO, options, _FOREVER), members(options), recorder)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    new_group = c10d._new_group_with_tag

    def tapped_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **options: Any) -> Any:
        """As `new_group`; a group of plain gloo is tapped, too."""
        return new_group(ranks, timeout, BACKEND if backend == "gloo" else backend, *args, **options)

    c10d._new_group_with_tag = tapped_group

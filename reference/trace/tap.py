"""The tap: a process group that hands every call on to gloo, or to another, and tells a recorder about it.

It is a Python subclass of `ProcessGroup`, so it sees what nothing above it can: calls from other threads, functional
collectives, autograd, DDP's reducer and FSDP's hooks. It changes no value. A call costs a few microseconds more.

    recorder = Recorder(rank)
    register(recorder)
    dist.init_process_group(BACKEND, ...)
    name_by_carrier(dist.group.WORLD)
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial, wraps
from math import prod
from operator import index
from sys import _getframe
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.distributed import ProcessGroup, Work
from torch.distributed import distributed_c10d as c10d

from reference.process_group import PythonGroup, any_form, called, connect, members, register_backend

from .calls import Call, locate
from .events import Op
from .requests import FOREVER, NO_FUTURE, Later, MessageRequest, TappedWork

BACKEND = "tapped"  # what creates our groups; they are called what carries them
_PLAIN = ("gloo", "cpu:gloo")  # what asks for gloo on a CPU


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

    @property
    def untold(self) -> list[Call]:
        """The calls that the owner of the ranks has not been told of while they ran: here, all."""
        return self.calls

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

    def make(self, call: Call, run: partial[Work]) -> Work:
        """Make `call`, which is to run a method of a group on its tensors: its request."""
        return TappedWork(run(), call, self)

    def waiting(self, call: Call) -> None:
        """The rank is about to wait for `call`."""

    def polled(self, call: Call) -> None:
        """The rank has asked whether `call` is complete, and it is not."""

    def source_asked(self, call: Call, frame: FrameType) -> None:
        """`frame` asks which source a receive from any rank has matched."""

    def completed(self, call: Call) -> None:
        """The rank's wait for `call` has returned."""
        if call.completed is None:
            call.completed, call.end = self.tick, time.monotonic()
            call.release()
            self.tick += 1

    def no_future(self, call: Call) -> None:
        """Raises what is to be raised where the future of a send or a receive is asked for: gloo has none."""
        raise NotImplementedError(NO_FUTURE)

    def future_taken(self, call: Call, future: torch.futures.Future) -> torch.futures.Future:
        """An unseen waiter (DDP's reducer) may wait for `call`; the future to wait for."""
        return future


class HeardCalls:
    """Counts what one rank says on one group, so that one can tell afterwards whether everything was heard.

    `messages[src, dst, tag]` are those sent less those received, or yet to be; `src` is None in a receive from any
    rank. Summed over all ranks they are zero where every message met a receive that names its source, and `rounds` are
    the same on every rank where all of them entered every collective.
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


@called(ProcessGroup)
class Tap(PythonGroup):
    """A carrier, with a recorder between it and the caller."""

    creator = BACKEND

    def __init__(self, carrier: ProcessGroup, ranks: tuple[int, ...], recorder: Recorder, name: str) -> None:
        super().__init__(carrier, name)  # the carrier's, by which it is asked what it can do
        self._global_ranks, self.recorder, self.ledger = ranks, recorder, HeardCalls(carrier.rank())
        self.destroyed = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its members, by their numbers in the world."""
        return self._global_ranks

    def _make(
        self,
        op: Op,
        run: partial[Work],
        inputs: list[Tensor],
        outputs: list[Tensor],
        root: int | None = None,
        tag: int = 0,
        **more: Any,
    ) -> Work:
        """Make a call; while recording, post it and wrap its request. What follows `run` are fields of `Call`."""
        root, tag = None if root is None else index(root), index(tag)  # they may be numpy's, or tensors
        if self.destroyed:
            raise ValueError("Invalid process group specified: it was destroyed")  # as torch says of rooted calls
        self.ledger.note(op, root, tag)
        if not self.recorder.on:
            return run()
        # A recorder's looks at the tensors are no calls of the caller's: no mode need see them.
        with DisableTorchFunction():
            call = Call(op, self._global_ranks, inputs, outputs, root, tag, group_name=self._group_name, **more)
            self.recorder.posted(call)
            return self.recorder.make(call, run)

    # Point to point.

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        run = partial(_message, self.carrier.send, tensors, dst, tag)
        return self._make(Op.SEND, run, tensors, [], dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        run = partial(_message, self.carrier.recv, tensors, src, tag)
        return self._make(Op.RECV, run, [], tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        run = partial(_message, self.carrier.recv_anysource, tensors, tag)
        return self._make(Op.RECV, run, [], tensors, None, tag)

    # One root.

    @any_form
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        root = opts.rootRank
        brings, gets = (tensors, []) if root == self.rank() else ([], tensors)
        run = partial(self.carrier.broadcast, tensors, opts)
        return self._make(Op.BROADCAST, run, brings, gets, root)

    @any_form
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.reduce, tensors, opts)
        return self._make(Op.REDUCE, run, tensors, tensors, opts.rootRank, reduce=_name(opts.reduceOp))

    @any_form
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.gather, outputs, inputs, opts)
        return self._make(Op.GATHER, run, inputs, _flat(outputs), opts.rootRank)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        root = (opts := opts or dist.GatherOptions()).rootRank
        run = partial(self.carrier.gather_single, output, input, opts)
        return self._make(Op.GATHER, run, [input], [output] if root == self.rank() else [], root)

    gather_into_tensor = gather_single  # both since torch 2.14

    @any_form
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        run = partial(self.carrier.scatter, outputs, inputs, opts)
        return self._make(Op.SCATTER, run, _flat(inputs), outputs, opts.rootRank)

    # All ranks.

    @any_form
    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.allreduce, tensors, opts)
        return self._make(Op.ALL_REDUCE, run, tensors, tensors, reduce=_name(opts.reduceOp))

    @any_form
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.allreduce_coalesced, tensors, opts)
        return self._make(Op.ALL_REDUCE, run, tensors, tensors, reduce=_name(opts.reduceOp))

    @any_form
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        run = partial(self.carrier.allgather, outputs, inputs, opts)
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

    @any_form
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        run = partial(self.carrier.reduce_scatter, outputs, inputs, opts)
        return self._make(Op.REDUCE_SCATTER, run, _flat(inputs), outputs, reduce=_name(opts.reduceOp))

    def reduce_scatter_single(self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None) -> Work:  # noqa: N803
        opts = opts or dist.ReduceScatterOptions()
        run = partial(self.carrier._reduce_scatter_base, outputTensor, inputTensor, opts)
        return self._make(Op.REDUCE_SCATTER, run, [inputTensor], [outputTensor], reduce=_name(opts.reduceOp))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        run = partial(self.carrier.reduce_scatter_tensor_coalesced, outputs, inputs, opts)
        return self._make(Op.REDUCE_SCATTER, run, inputs, outputs, reduce=_name(opts.reduceOp))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        *opts: Any,
        **named: Any,
    ) -> Work:
        there, back = self._splits(input, input_split_sizes), self._splits(output, output_split_sizes)
        run = partial(self.carrier.alltoall_base, output, input, output_split_sizes, input_split_sizes, *opts, **named)
        return self._make(Op.ALL_TO_ALL, run, [input], [output], width=_row(input), splits=there, out_splits=back)

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: list[Tensor], input_tensors: list[Tensor], *opts: Any, **named: Any) -> Work:
        there, back = tuple(t.numel() for t in input_tensors), tuple(t.numel() for t in output_tensors)
        run = partial(self.carrier.alltoall, output_tensors, input_tensors, *opts, **named)
        return self._make(Op.ALL_TO_ALL, run, input_tensors, output_tensors, splits=there, out_splits=back)

    def barrier(self, *args: Any, **options: Any) -> Work:
        run = partial(self.carrier.barrier, *args, **options)
        return self._make(Op.BARRIER, run, [], [])

    def monitored_barrier(self, timeout: timedelta = FOREVER, wait_all_ranks: bool = False) -> None:
        run = partial(Later, partial(self.carrier.monitored_barrier, timeout, wait_all_ranks))
        self._make(Op.BARRIER, run, [], []).wait()

    def shutdown(self) -> None:
        """What torch calls when a group is destroyed. torch looks for a destroyed group only where a root is named."""
        self.destroyed = True
        super().shutdown()

    def _splits(self, tensor: Tensor, rows: list[int]) -> tuple[int, ...]:
        """Elements for each rank: rows along dim 0, or equal parts."""
        if not rows:
            return (tensor.numel() // self.size(),) * self.size()
        return tuple(row * _row(tensor) for row in rows)


def _message(method: Callable[..., Work], *args: Any) -> MessageRequest:
    """The request of a send or a receive."""
    return MessageRequest(method(*args))


def _row(tensor: Tensor) -> int:
    """Elements of one row along dim 0."""
    return prod(tensor.shape[1:]) if tensor.dim() and tensor.shape[0] else 1


def _flat(lists: list[list[Tensor]]) -> list[Tensor]:
    return [tensor for inner in lists for tensor in inner]


def _name(op: Any) -> str:
    return op.op.name.lower()


def world_recorder() -> Recorder:
    """The recorder of this rank. Raises RuntimeError where nothing lies between torch.distributed and the caller."""
    if not isinstance(dist.group.WORLD, Tap):
        raise RuntimeError("nothing records what this process says: call it on a rank of a Cluster, in cluster.trace")
    return dist.group.WORLD.recorder


def register(
    recorder: Recorder, connect: Callable[..., ProcessGroup] = connect, carrier: str = dist.Backend.GLOO
) -> None:
    """Make `tapped` a backend of `torch.distributed` in this process.

    Args:
        recorder: that hears what is said.
        connect: makes a carrier, as `process_group.connect` does.
        carrier: the backend whose groups carry what is said.
    """

    def create(options: Any, _: Any) -> Tap:
        return Tap(connect(carrier, options, FOREVER), members(options), recorder, carrier)

    register_backend(BACKEND, create)
    new_group = c10d._new_group_with_tag

    @wraps(new_group)
    def tapped_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **options: Any) -> Any:
        """As `new_group`; a group of plain gloo is tapped, too, and so is one like the world where that is."""
        like_world = not backend and isinstance(dist.group.WORLD, Tap)
        plain = like_world or str(backend).lower() in _PLAIN
        group = new_group(ranks, timeout, BACKEND if plain else backend, *args, **options)
        name_by_carrier(group)
        return group

    c10d._new_group_with_tag = tapped_group


def name_by_carrier(group: Any) -> None:
    """Have torch call a tapped group what carries it, so that whatever asks for gloo by its name finds it."""
    if isinstance(group, Tap):
        _, store = c10d._world.pg_map[group]
        name = dist.Backend(group.getBackendName())
        c10d._world.pg_map[group] = (name, store)
        c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(name))

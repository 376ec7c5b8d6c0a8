"""MPI as a backend of `torch.distributed`: what the reference, PyTorch's own DDP, FSDP and pipelining can run on.

    mpiexec -n 4 python -m reference.train                 # the same loop, started by MPI, over MPI

    mpi.register()                                         # in a program of one's own
    dist.init_process_group(mpi.NAME, store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())

A group is a Python subclass of `ProcessGroup` over an MPI communicator of its ranks. Tensors are not copied: MPI is
given the address of what they hold, and its type. Every call is one of MPI's non-blocking ones, so it continues while
the rank computes, as far as the MPI library makes progress meanwhile: most move large messages inside of `wait` alone.
It takes mpi4py, and an MPI library such as MPICH or Open MPI; both come as wheels (`pip install mpi4py mpich`).

What MPI lacks is made here: 16-bit floats are added by torch, in an operation of our own; a mean is a sum that is
divided at the end; lists of tensors travel as one tensor that is copied to them; what is not contiguous is copied, and
so is a sum that goes into a chunk of what is summed. DDP asks for a future at once, which only an end can fulfil: so
its buckets are waited for where they start. A rank is what MPI says it is, on a CPU; torch must not number ranks
otherwise.
"""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from reference.errors import BadInput
from reference.process_group import NamedGroup, any_form, called, members, register_backend

from .checks import check_dense, check_list, check_op, check_size
from .done import put_back
from .reduction import combine, finish

NAME = "mpi4py"
STARTED_BY = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")  # what MPICH's and Open MPI's mpiexec tell each process


@cache
def library() -> Any:
    """mpi4py, once it has started MPI.

    Raises:
        BadInput: if there is none.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise BadInput(f"ranks of mpiexec talk over MPI, which takes `pip install mpi4py mpich`: {error}") from error
    return MPI


def is_started() -> bool:
    """Whether mpiexec has started this process."""
    return any(name in os.environ for name in STARTED_BY)


def rank() -> int:
    """Of this process, among all that mpiexec has started."""
    return library().COMM_WORLD.Get_rank()


def size() -> int:
    """How many processes mpiexec has started."""
    return library().COMM_WORLD.Get_size()


def store() -> dist.Store:
    """Where all ranks can leave each other words. All of them call this: rank 0 tells the others where it is."""
    world = library().COMM_WORLD
    host, port, ours = socket.gethostname(), 0, None
    if rank() == 0:
        ours = dist.TCPStore(host, 0, size(), is_master=True, wait_for_workers=False)
        port = ours.port
    host, port = world.bcast((host, port))
    return ours or dist.TCPStore(host, port, size(), is_master=False)


def name_ranks() -> None:
    """Say in the environment what torchrun would: which rank this is, of how many, and on this machine."""
    MPI = library()  # noqa: N806
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    said = {"RANK": rank(), "WORLD_SIZE": size(), "LOCAL_RANK": here.Get_rank(), "LOCAL_WORLD_SIZE": here.Get_size()}
    os.environ.update({name: str(number) for name, number in said.items()})


def register() -> None:
    """Make `mpi4py` a backend in this process. Groups of other ranks than all are communicators of their own.

    An exception that nothing catches then ends all ranks: one that left alone would wait for the others at its end, and
    they for what it has not sent.
    """

    def end_all(*error: Any) -> None:
        traceback.print_exception(*error)
        sys.stderr.flush()
        library().COMM_WORLD.Abort(1)

    sys.excepthook = end_all

    def create(options: Any, _: Any) -> MpiGroup:
        world = library().COMM_WORLD
        ranks = members(options)
        whole = ranks == tuple(range(size()))
        return MpiGroup(world.Dup() if whole else world.Create_group(world.group.Incl(ranks)))

    register_backend(NAME, create)


@called(Work)
class MpiRequest(Work):
    """Calls of MPI that have started.

    Args:
        requests: of MPI.
        tensors: the results.
        end: what is left to do once all requests are complete.
        used: what must stay until then.
    """

    def __init__(
        self, requests: Sequence[Any], tensors: list[Tensor], end: Callable[[], None] | None = None, used: Any = None
    ) -> None:
        super().__init__()
        self.requests, self.tensors, self.end, self.used = list(requests), tensors, end, used
        self.done, self.source = False, -1

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the call is complete. MPI knows no time limit."""
        if not self.done:
            status = library().Status()
            for request in self.requests:
                request.Wait(status)
            self._complete(status)
        return True

    def _complete(self, status: Any) -> None:
        self.done, self.source = True, status.source
        if self.end:
            self.end()
        self.used = self.end = None

    def is_completed(self) -> bool:
        """Whether it is complete by now."""
        status = library().Status()
        if not self.done and all(request.Test(status) for request in self.requests):
            self._complete(status)
        return self.done

    def is_success(self) -> bool:
        """MPI ends the program where a call fails."""
        return self.is_completed()

    def get_future(self) -> torch.futures.Future:
        """The results, once they are there."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.tensors)
        return future

    def result(self) -> list[Tensor]:
        """The results."""
        return self.tensors

    def source_rank(self) -> int:
        """Group rank that a receive from any rank heard from."""
        return self.source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()


@called(ProcessGroup)
class MpiGroup(NamedGroup):
    """The ranks of an MPI communicator, which is this group's own."""

    _device_types = (torch.device("cpu"),)  # what torch asks a group about

    def __init__(self, communicator: Any) -> None:
        super().__init__(communicator.Get_rank(), communicator.Get_size(), NAME)
        self.communicator = communicator

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """All of it: this group has no parts in C++."""
        return self

    # Point to point.

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        used = [contiguous(x) for x in tensors]
        return MpiRequest([self.communicator.Isend(held(x), dstRank, tag) for x in used], tensors, used=used)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:  # noqa: N803
        used = [contiguous(x) for x in tensors]
        requests = [self.communicator.Irecv(held(x), srcRank, tag) for x in used]
        return MpiRequest(requests, tensors, lambda: give_back(used, tensors), used)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        return self.recv(tensors, library().ANY_SOURCE, tag)

    # One root.

    @any_form
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        used = [contiguous(x) for x in tensors]
        requests = [self.communicator.Ibcast(held(x), opts.rootRank) for x in used]
        return MpiRequest(requests, tensors, lambda: give_back(used, tensors), used)

    @any_form
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._reduced("Ireduce", tensors, opts, root=opts.rootRank)

    @any_form
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        (x,) = map(contiguous, inputs)
        if outputs:
            check_list(outputs[0], self.size(), x)
        out = x.new_empty(self.size(), *x.shape) if outputs else None
        into = None if out is None else held(out, parts=self.size())
        request = self.communicator.Igather(held(x), into, opts.rootRank)
        return MpiRequest([request], outputs[0] if outputs else [], lambda: hand_out(out, outputs), (x, out))

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        root = (opts or dist.GatherOptions()).rootRank
        outputs, x = [output] if root == self.rank() else [], contiguous(input)
        for out in outputs:
            check_size(out, self.size() * x.numel(), x.dtype)
        used = [contiguous(out) for out in outputs]
        into = held(used[0], parts=self.size()) if used else None
        request = self.communicator.Igather(held(x), into, root)
        return MpiRequest([request], outputs, lambda: give_back(used, outputs), (x, used))

    gather_into_tensor = gather_single  # both since torch 2.14

    @any_form
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        if inputs:
            check_list(inputs[0], self.size(), outputs[0])
        used = [contiguous(x) for x in outputs]
        chunks = torch.cat([x.reshape(-1) for x in inputs[0]]) if inputs else None
        given = None if chunks is None else held(chunks, parts=self.size())
        request = self.communicator.Iscatter(given, held(used[0]), opts.rootRank)
        return MpiRequest([request], outputs, lambda: give_back(used, outputs), (chunks, used))

    # All ranks.

    @any_form
    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._reduced("Iallreduce", tensors, opts)

    @any_form
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._reduced("Iallreduce", tensors, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        check_size(output, self.size() * input.numel(), input.dtype)
        return self.all_gather_single_coalesced([output], [input])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        used, brings = [contiguous(x) for x in outputs], [contiguous(x) for x in inputs]
        requests = []
        for out, x in zip(used, brings, strict=True):
            in_place = x.data_ptr() == out.data_ptr() + self.rank() * x.nbytes
            given = library().IN_PLACE if in_place else held(x)
            requests.append(self.communicator.Iallgather(given, held(out, parts=self.size())))
        return MpiRequest(requests, outputs, lambda: give_back(used, outputs), (used, brings))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @any_form
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        for places, x in zip(outputs, inputs, strict=True):
            check_list(places, self.size(), x)
        brings = [contiguous(x) for x in inputs]
        outs = [x.new_empty(self.size(), *x.shape) for x in brings]
        pairs = zip(brings, outs, strict=True)
        requests = [self.communicator.Iallgather(held(x), held(out, parts=self.size())) for x, out in pairs]

        def end() -> None:
            for out, places in zip(outs, outputs, strict=True):
                hand_out(out, [places])

        return MpiRequest(requests, outputs[0], end, brings)

    def allgather_coalesced(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:
        return self.allgather([list(places) for places in zip(*output_lists, strict=True)], input_list)

    def reduce_scatter_single(self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None) -> Work:  # noqa: N803
        check_size(inputTensor, self.size() * outputTensor.numel(), outputTensor.dtype)
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        op = (opts or dist.ReduceScatterOptions()).reduceOp.op
        brings = [contiguous(x) for x in inputs]
        used = [apart(contiguous(out), x) for out, x in zip(outputs, brings, strict=True)]
        requests = []
        for out, x in zip(used, brings, strict=True):
            check_op(op, x.dtype)
            given = held(x, op, self.size()), held(out, op), operation_of(op, x.dtype)
            requests.append(self.communicator.Ireduce_scatter_block(*given))
        return MpiRequest(requests, outputs, lambda: self._divide(used, outputs, op), (used, brings))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @any_form
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        for output, chunks in zip(outputs, inputs, strict=True):
            check_list(chunks, self.size(), output)
        return self.reduce_scatter_single_coalesced(outputs, [torch.stack(list(chunks)) for chunks in inputs], opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,  # or a timeout
        **named: Any,
    ) -> Work:
        out, x = contiguous(output), contiguous(input)
        if input_split_sizes or output_split_sizes:
            there, back = (rows(*pair, self.size()) for pair in ((x, input_split_sizes), (out, output_split_sizes)))
            request = self.communicator.Ialltoallv([held(x)[0], there, held(x)[2]], [held(out)[0], back, held(out)[2]])
        else:
            check_size(output, input.numel(), input.dtype)
            request = self.communicator.Ialltoall(*(held(each, parts=self.size()) for each in (x, out)))
        return MpiRequest([request], [output], lambda: give_back([out], [output]), (x, out))

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None) -> Work:
        x = torch.cat([each.reshape(-1) for each in input_tensors])
        there, back = [each.numel() for each in input_tensors], [each.numel() for each in output_tensors]
        out = x.new_empty(sum(back))
        work = self.all_to_all_single(out, x, back, there)
        work.wait()
        for place, part in zip(output_tensors, out.split(back), strict=True):
            place.copy_(part.view(place.shape))
        return MpiRequest([], output_tensors)

    def barrier(self, *arguments: Any, **options: Any) -> Work:
        return MpiRequest([self.communicator.Ibarrier()], [])

    def shutdown(self) -> None:
        """What torch calls when a group is destroyed."""
        self.communicator.Free()

    def _reduced(self, method: str, tensors: list[Tensor], opts: Any, root: int | None = None) -> Work:
        """Start an all-reduce or a reduce, in place."""
        op, used, requests = opts.reduceOp.op, [contiguous(x) for x in tensors], []
        for x in used:
            check_op(op, x.dtype)
            given = library().IN_PLACE, held(x, op)
            if root is not None and root != self.rank():
                given = held(x, op), None
            more = () if root is None else (root,)
            requests.append(getattr(self.communicator, method)(*given, operation_of(op, x.dtype), *more))
        is_result = root in (None, self.rank())
        end = (lambda: self._divide(used, tensors, op)) if is_result else None
        return MpiRequest(requests, tensors, end, used)

    def _divide(self, used: list[Tensor], tensors: list[Tensor], op: Any) -> None:
        """Make averages of sums where they are asked for, and put them where they belong."""
        for x in used:
            finish(x, self.size(), op)
        give_back(used, tensors)


def contiguous(x: Tensor) -> Tensor:
    """What MPI is given of a tensor: itself, without its history, or a copy where it has gaps."""
    check_dense(x)
    return x.detach().contiguous()


def apart(out: Tensor, x: Tensor) -> Tensor:
    """Where a result goes that MPI must not write into what it reads: elsewhere, if it is a part of that."""
    begin, end = x.data_ptr(), x.data_ptr() + x.nbytes
    return torch.empty_like(out) if begin <= out.data_ptr() < end else out


def give_back(used: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy results to tensors that were not contiguous."""
    for mine, x in zip(used, tensors, strict=True):
        if mine.data_ptr() != x.data_ptr():
            put_back(mine, x.detach())


def hand_out(out: Tensor | None, outputs: Sequence[Sequence[Tensor]]) -> None:
    """Copy rows to a list of tensors."""
    for place, row in zip(outputs[0], out, strict=True) if outputs else ():
        place.detach().copy_(row.view(place.shape))


def rows(x: Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank: rows along dim 0, or equal parts."""
    if not splits:
        return [x.numel() // ranks] * ranks
    return [split * (x.numel() // x.shape[0] if x.shape[0] else 0) for split in splits]


def held(x: Tensor, op: Any = None, parts: int = 1) -> list[Any]:
    """A contiguous tensor as MPI takes it: an address, how many, of which type.

    Args:
        x: contiguous.
        op: by which it is reduced, if it is.
        parts: of how many ranks it has parts: MPI counts what each of them sends or gets.
    """
    MPI = library()  # noqa: N806
    mpi_type = raw(x.itemsize) if op is not None and is_ours(op, x.dtype) else kind(x.dtype)
    return [MPI.memory.fromaddress(x.data_ptr(), x.nbytes), x.numel() // parts, mpi_type]


@cache
def kind(dtype: torch.dtype) -> Any:
    """The type of MPI that holds such numbers; so many bytes, where it has none."""
    MPI = library()  # noqa: N806
    names = {
        torch.uint8: "UINT8_T",
        torch.int8: "INT8_T",
        torch.int16: "INT16_T",
        torch.int32: "INT32_T",
        torch.int64: "INT64_T",
        torch.float32: "FLOAT",
        torch.float64: "DOUBLE",
        torch.complex64: "C_FLOAT_COMPLEX",
        torch.complex128: "C_DOUBLE_COMPLEX",
    }
    return getattr(MPI, names[dtype]) if dtype in names else raw(dtype.itemsize)


@cache
def raw(size: int) -> Any:
    """A type of so many bytes, which only travels and is combined by operations of our own."""
    return library().BYTE.Create_contiguous(size).Commit()


def is_ours(op: Any, dtype: torch.dtype) -> bool:
    """Whether torch combines such numbers, and not MPI."""
    return kind(dtype) is raw(dtype.itemsize)


@cache
def operation_of(op: Any, dtype: torch.dtype) -> Any:
    """MPI's operation, or one that lets torch combine the numbers."""
    MPI = library()  # noqa: N806
    if is_ours(op, dtype):

        def combined(incoming: Any, accumulator: Any, _: Any) -> None:
            received = torch.frombuffer(incoming, dtype=dtype)
            combine(torch.frombuffer(accumulator, dtype=dtype), received, op)

        return MPI.Op.Create(combined, commute=True)
    names = {"SUM": "SUM", "AVG": "SUM", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX"}
    names |= {"BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
    return next(getattr(MPI, name) for said, name in names.items() if op == getattr(dist.ReduceOp, said))

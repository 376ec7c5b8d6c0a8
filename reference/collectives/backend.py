"""The hand-made collectives as a backend of `torch.distributed`: what PyTorch's own DDP, FSDP and pipelining run on.

    from reference.collectives import backend
    backend.register()                                     # or register({"all_reduce": my_ring_all_reduce})
    group = dist.new_group(backend=backend.NAME)           # or dist.init_process_group(backend.NAME, ...)
    model = DistributedDataParallel(model, process_group=group)

A group of this backend is a Python subclass of `ProcessGroup`. Sends and receives it hands on to a carrier: gloo, NCCL,
or whatever the world is on. Every collective it makes of them, with the functions of this package or with one's own.

Collectives run in the caller, which finds them done: nothing overlaps with compute. Their messages have tags of their
own: on gloo no receive of the caller's takes one of them, nor they one of the caller's. A list of all ranks' tensors
has tensors of one length, where gloo takes others for `reduce_scatter`; sparse tensors, which gloo adds up, are
refused; what goes into a tensor that is not contiguous keeps its order; the time limit is the group's, whatever the
options of a call say; and DDP's two hooks that are written in C++ (`_register_builtin_comm_hook`) want a future that
only C++ can make: those of `ddp_comm_hooks`, which do the same, run. Everything else is as on gloo.

Over NCCL, `batch_isend_irecv` on such a group is single calls, one after the other: torch makes a batch on its own
groups alone. Two ranks that both send first, as torch's own pipelining does in 1F1B, then hang once a message is larger
than NCCL's buffers.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import local
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from reference.process_group import PythonGroup, any_form, called, connect, introduce, members, register_backend
from reference.trace.events import APART

from . import all_to_all, barrier, gather, reduce, scatter
from .checks import check_dense, check_list, check_op, check_size
from .done import Done, put_back
from .fast import select
from .reduction import SUM

NAME = "handmade"

REFERENCE: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "broadcast": select.broadcast,  # (x, root, group)
        "reduce": reduce.tree,  # (x, root, group, op)
        "scatter": scatter.tree,  # (out, chunks, root, group)
        "gather": gather.tree,  # (x, out, root, group)
        "all_gather": select.all_gather,  # (x, out, group)
        "reduce_scatter": select.reduce_scatter,  # (x, out, group, op)
        "all_reduce": select.all_reduce,  # (x, group, op)
        "all_to_all": select.all_to_all,  # (x, out, group)
        "all_to_all_uneven": all_to_all.uneven,  # (x, out, in_splits, out_splits, group)
        "barrier": barrier.dissemination,  # (group)
    }
)


def register(
    functions: Mapping[str, Callable[..., None]] = REFERENCE, *, name: str = NAME, carrier: str | None = None
) -> None:
    """Make `name` a backend in this process. Groups made afterwards use `functions`; call again for others.

    Args:
        functions: by the names of `REFERENCE`, with the arguments noted there. What is missing comes from there.
            One that takes no `op` serves sums; averages, minima and so on then come from there too.
        name: of the backend.
        carrier: backend that sends and receives; by default the world's, or gloo where there is no world yet.

    Raises:
        ValueError: a name that is no collective.
    """
    if unknown := functions.keys() - REFERENCE.keys():
        raise ValueError(f"no such collective: {', '.join(sorted(unknown))}; there are {', '.join(REFERENCE)}")

    def create(options: Any, _: Any) -> CustomCollectives:
        below = carrier or carrier_of_world()
        return CustomCollectives(connect(below, options), members(options), REFERENCE | functions, (name, below))

    register_backend(name, create, ("cpu", "cuda"))


def carrier_of_world() -> str:
    """The backend that messages of the world travel on; those between GPUs, where it has one for each device."""
    world = dist.group.WORLD
    if world is None:
        return dist.Backend.GLOO
    if isinstance(world, CustomCollectives):
        return world.backends[1]
    backend = getattr(world, "creator", None) or dist.get_backend()
    return dist.Backend.NCCL if "cuda:nccl" in backend else backend


@called(ProcessGroup)
class CustomCollectives(PythonGroup):
    """A process group whose collectives are functions of sends and receives.

    Args:
        carrier: sends and receives.
        ranks: global ranks, in group order.
        functions: all collectives, by name.
        backends: names of this backend and of the carrier's.
    """

    def __init__(
        self,
        carrier: ProcessGroup,
        ranks: tuple[int, ...],
        functions: Mapping[str, Callable[..., None]],
        backends: tuple[str, str],
    ) -> None:
        super().__init__(carrier, backends[0])
        self.functions, self.backends = functions, backends
        self.group = self
        self.destroyed = False
        self.running = local()  # `.depth`: how many collectives this thread is in
        if any(device.type == "cuda" for device in carrier._device_types):
            # NCCL makes a batch only of what is sent on a plain ProcessGroup, which torch has to know.
            self.group = carrier
            introduce(carrier, ranks, dist.Backend.NCCL)

    @torch.no_grad()  # values travel, histories stay
    def run(self, collective: str, *arguments: Any, op: Any = None) -> None:
        """Run a collective: `function(*arguments, group)`, with `op` where it reduces otherwise than by the sum.

        Functions take contiguous tensors: where one is not, they work on a copy, which is copied back.
        """
        self.check_alive()
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        for x in tensors:
            check_dense(x)
        if op is not None:
            check_op(op, tensors[0].dtype)
        function = self.functions[collective]
        if op not in (None, SUM):
            served = "op" in inspect.signature(function).parameters
            function = partial(function if served else REFERENCE[collective], op=op)
        contiguous = [x.contiguous() if isinstance(x, Tensor) else x for x in arguments]
        with self.inside():
            function(*contiguous, self.group)
        for x, used in zip(arguments, contiguous, strict=True):
            if used is not x:
                put_back(used, x)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While a collective runs, this thread's messages have tags of their own."""
        depth = getattr(self.running, "depth", 0)
        self.running.depth = depth + 1
        try:
            yield
        finally:
            self.running.depth = depth

    def apart(self, tag: int) -> int:
        """The tag that a message travels with. NCCL has none."""
        self.check_alive()
        return tag + APART if getattr(self.running, "depth", 0) else tag

    def shutdown(self) -> None:
        """What torch calls when a group is destroyed."""
        self.destroyed = True
        super().shutdown()

    def check_alive(self) -> None:
        """Raises ValueError where the group was destroyed: torch looks for that only where a root is named."""
        if self.destroyed:
            raise ValueError("Invalid process group specified: it was destroyed")

    # Point to point.

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        with torch.no_grad():  # as in `run`: a pipeline sends activations that have a history
            return self.carrier.send(tensors, dstRank, self.apart(tag))

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:  # noqa: N803
        return self.carrier.recv(tensors, srcRank, self.apart(tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        return self.carrier.recv_anysource(tensors, self.apart(tag))

    # One root.

    @any_form
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        for tensor in tensors:
            self.run("broadcast", tensor, opts.rootRank)
        return Done(tensors)

    @any_form
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        for tensor in tensors:
            self.run("reduce", tensor, opts.rootRank, op=opts.reduceOp.op)
        return Done(tensors)

    @any_form
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        if inputs:
            check_list(inputs[0], self.size(), outputs[0])
        chunks = torch.cat([tensor.reshape(-1) for tensor in inputs[0]]) if inputs else None
        self.run("scatter", outputs[0], chunks, opts.rootRank)
        return Done(outputs)

    @any_form
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        (x,) = inputs
        if outputs:
            check_list(outputs[0], self.size(), x)
        out = x.new_empty(self.size(), *x.shape) if outputs else None
        self.run("gather", x.contiguous(), out, opts.rootRank)
        for tensor, row in zip(outputs[0], out, strict=True) if outputs else ():
            tensor.copy_(row)
        return Done(outputs[0] if outputs else [])

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        root = (opts or dist.GatherOptions()).rootRank
        outputs = [output] if root == self.rank() else []
        for out in outputs:
            check_size(out, self.size() * input.numel(), input.dtype)
        out = output.view(self.size(), *input.shape) if outputs else None
        self.run("gather", input.contiguous(), out, root)
        return Done(outputs)

    gather_into_tensor = gather_single  # both since torch 2.14

    # All ranks.

    @any_form
    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        for tensor in tensors:
            self.run("all_reduce", tensor, op=opts.reduceOp.op)
        return Done(tensors)

    @any_form
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        return self.allreduce(tensors, opts.reduceOp)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        check_size(output, self.size() * input.numel(), input.dtype)
        self.run("all_gather", input.contiguous(), output)
        return Done([output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, input)
        return Done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @any_form
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        for places, x in zip(outputs, inputs, strict=True):
            check_list(places, self.size(), x)
            out = x.new_empty(self.size(), *x.shape)
            self.run("all_gather", x.contiguous(), out)
            for place, row in zip(places, out, strict=True):
                place.copy_(row.view(place.shape))
        return Done(outputs[0])

    def allgather_coalesced(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:
        for places, x in zip(zip(*output_lists, strict=True), input_list, strict=True):
            self.allgather([list(places)], [x])
        return Done([tensor for places in output_lists for tensor in places])

    def reduce_scatter_single(self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None) -> Work:  # noqa: N803
        check_size(inputTensor, self.size() * outputTensor.numel(), outputTensor.dtype)
        op = (opts or dist.ReduceScatterOptions()).reduceOp.op
        self.run("reduce_scatter", inputTensor.contiguous(), outputTensor, op=op)
        return Done([outputTensor])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, input, opts)
        return Done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @any_form
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        for output, chunks in zip(outputs, inputs, strict=True):
            check_list(chunks, self.size(), output)
            self.run("reduce_scatter", torch.stack(list(chunks)), output, op=opts.reduceOp.op)
        return Done(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,  # or a timeout
        **named: Any,
    ) -> Work:
        if input_split_sizes or output_split_sizes:
            n = self.size()
            in_splits = input_split_sizes or [input.shape[0] // n] * n
            out_splits = output_split_sizes or [output.shape[0] // n] * n
            self.run("all_to_all_uneven", input.contiguous(), output, in_splits, out_splits)
        else:
            check_size(output, input.numel(), input.dtype)
            self.run("all_to_all", input.contiguous(), output)
        return Done([output])

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None) -> Work:
        outputs, inputs = output_tensors, input_tensors
        in_splits, out_splits = [x.numel() for x in inputs], [out.numel() for out in outputs]
        out = outputs[0].new_empty(sum(out_splits))
        self.run("all_to_all_uneven", torch.cat([x.reshape(-1) for x in inputs]), out, in_splits, out_splits)
        for place, part in zip(outputs, out.split(out_splits), strict=True):
            place.copy_(part.view(place.shape))
        return Done(outputs)

    def barrier(self, *arguments: Any, **opts: Any) -> Work:
        self.run("barrier")
        return Done([])

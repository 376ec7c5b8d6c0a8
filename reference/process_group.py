"""Process groups written in Python, each over one that torch brings.

torch.distributed hands whatever is said on a group to the group's methods. So a class that defines these receives it
(`trace.tap`), or makes it of sends and receives (`collectives.backend`); torch's own DDP, FSDP and pipelining come
through them, too.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

RENAMED = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
"""Collectives that torch 2.13 calls so, and 2.11 and 2.12 otherwise."""


def have_names_of_today() -> None:
    """Have torch know the new names, too: hints, answers and tests say them, and their readers will."""
    for name, before in RENAMED.items():
        if not hasattr(dist, name):
            setattr(dist, name, getattr(dist, before))


have_names_of_today()  # every rank imports this

BUILT_IN = (dist.Backend.GLOO, dist.Backend.NCCL)
"""Backends that torch brings; from 2.15 on among its plugins, too, whose creators make no groups, but parts of one."""

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Short:
    """How torch lets one say a call with tensors where its long form has lists, and without an object of options.

    group.broadcast([x], options)      the long form, which torch.distributed itself uses
    group.broadcast(x, 0)              the short form
    group.allreduce([x], ReduceOp.MAX) or half of both
    """

    long_names: tuple[str, ...]  # of the arguments that hold tensors
    names: tuple[str, ...]  # the same in the short form
    options: type
    fields: tuple[str, ...] = ()  # what the short form says after them, in this order: root, op


SHORT: dict[str, Short] = {
    "broadcast": Short(("tensors",), ("tensor",), dist.BroadcastOptions, ("root",)),
    "reduce": Short(("tensors",), ("tensor",), dist.ReduceOptions, ("root", "op")),
    "allreduce": Short(("tensors",), ("tensor",), dist.AllreduceOptions, ("op",)),
    "allreduce_coalesced": Short(("tensors",), ("tensors",), dist.AllreduceCoalescedOptions),
    "gather": Short(
        ("output_tensors", "input_tensors"), ("output_tensors", "input_tensor"), dist.GatherOptions, ("root",)
    ),
    "scatter": Short(
        ("output_tensors", "input_tensors"), ("output_tensor", "input_tensors"), dist.ScatterOptions, ("root",)
    ),
    "allgather": Short(("output_tensors", "input_tensors"), ("output_tensors", "input_tensor"), c10d.AllgatherOptions),
    "reduce_scatter": Short(
        ("output_tensors", "input_tensors"), ("output", "input"), dist.ReduceScatterOptions, ("op",)
    ),
}
"""By the name of the method. Each may end with a `timeout`, in either form."""


def any_form(method: Method) -> Method:
    """Let a method of a process group be called in each form that torch has for it; it hears the long one.

    Raises:
        TypeError: from the call, for arguments that are of no form.
    """
    short = SHORT[method.__name__]

    @wraps(method)
    def call(self: ProcessGroup, *given: Any, **named: Any) -> Any:
        return method(self, *long_form(method.__name__, short, given, named))

    return call


def long_form(name: str, short: Short, given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments of the method called `name`: those with tensors as lists, and an object of options."""
    rest, named = list(given), dict(named)

    def take(*names: str) -> Any:
        if rest:
            return rest.pop(0)
        found = next((each for each in names if each in named), None)
        if found is None:
            raise TypeError(f"{name} of a process group lacks an argument: {names[-1]}")
        return named.pop(found)

    tensors = [take(*names) for names in zip(short.long_names, short.names, strict=True)]
    if any(isinstance(each, Tensor) for each in tensors):
        tensors = [[each] if isinstance(each, Tensor) or each else [] for each in tensors]  # [] where no root is
    options = short.options()
    if "opts" in named or (rest and isinstance(rest[0], short.options)):
        options = take("opts")
    elif rest or named:
        _say(options, short.fields, take, rest, named)
    if rest or named:
        unknown = ", ".join([*map(repr, rest), *named])
        raise TypeError(f"{name} of a process group takes tensors and options, and not also {unknown}")
    return [*tensors, options]


def _say(options: Any, fields: tuple[str, ...], take: Callable[..., Any], rest: list[Any], named: dict) -> None:
    """Put what a short form says into its options."""
    if "root" in fields and (rest or "root" in named):
        options.rootRank = take("root")
    if "op" in fields and ((rest and not isinstance(rest[0], timedelta)) or "op" in named):
        op = take("op")
        options.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if (rest or "timeout" in named) and (timeout := take("timeout")) is not None:
        options.timeout = timeout


def called(base: type) -> Callable[[type], type]:
    """Let a subclass go by the name of torch's class: messages of Python and torch name what their reader knows.

    To be written above a class of requests or groups, whose objects callers get where torch would give them a `base`.
    """

    def rename(own: type) -> type:
        own.__name__ = own.__qualname__ = base.__name__
        own.__module__ = "torch.distributed"
        return own

    return rename


class NamedGroup(ProcessGroup):
    """What torch asks any group about itself, and C++ answers for its own groups alone.

    Args:
        rank, size: of the group.
        backend: what it is called.
    """

    def __init__(self, rank: int, size: int, backend: str) -> None:
        super().__init__(rank, size)
        self._backend_name, self._group_name, self._desc = backend, "", ""

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    def getBackendName(self) -> str:  # noqa: N802
        return self._backend_name


@called(ProcessGroup)
class PythonGroup(NamedGroup):
    """The ranks of another group. What a call does, a subclass says.

    Args:
        carrier: the other group.
        backend: what this one's is called.
    """

    creator: str | None = None  # the backend that makes groups like this one, where it is called something else

    def __init__(self, carrier: ProcessGroup, backend: str) -> None:
        super().__init__(carrier.rank(), carrier.size(), backend)
        self.carrier = carrier
        for device in ProcessGroup._device_types.fget(carrier):  # its parts in C++: one written in Python may have none
            kind = ProcessGroup.BackendType.NCCL if device.type == "cuda" else ProcessGroup.BackendType.GLOO
            self._register_backend(device, kind, carrier._get_backend(device))

    @property
    def _device_types(self) -> Sequence[torch.device]:
        """Whose tensors it takes."""
        return self.carrier._device_types

    def _get_backend(self, device: torch.device) -> Any:
        """The part that takes a device's tensors; torch 2.14 asks before it sends several."""
        return self.carrier._get_backend(device)


def register_backend(name: str, create: Callable[[Any, Any], ProcessGroup], devices: Sequence[str] = ("cpu",)) -> None:
    """Make `name` a backend of `torch.distributed` in this process, whose groups are written in Python.

    From torch 2.15 on a flight recorder is attached to groups of backends that torch does not know. It asks the part
    of a group that is written in C++ for its name, which such a group has not given it, and fails. Their carriers keep
    such a record, where one is kept.

    Args:
        create: makes a group of what torch hands to a creator with `extended_api`.
        devices: whose tensors its groups take.
    """
    dist.Backend.register_backend(name, create, extended_api=True, devices=list(devices))
    if known := getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", None):
        known.add(name.lower())


def connect(backend: str, options: Any, timeout: timedelta | None = None) -> ProcessGroup:
    """A plain group of `backend` for the ranks that `options` of a new group name.

    Args:
        backend: "gloo", "nccl", or one that was registered in this process.
        options: what torch hands to the creator of a backend with `extended_api`.
        timeout: of its calls; by default that of `options`.
    """
    plugin = dist.Backend._plugins.get(backend.upper())
    if plugin is not None and backend not in BUILT_IN:
        return plugin.creator_fn(options, None)
    store, rank, size = options.store, options.group_rank, options.group_size
    timeout = timeout or options.timeout
    if backend == dist.Backend.NCCL:
        nccl = dist.ProcessGroupNCCL.Options()
        nccl.global_ranks_in_group, nccl.group_name = options.global_ranks_in_group, options.group_id
        nccl._timeout = timeout  # NCCL asks its options alone, and has 10 minutes otherwise
        kind, device = ProcessGroup.BackendType.NCCL, "cuda"
        engine = dist.ProcessGroupNCCL(store, rank, size, nccl)
    else:
        kind, device = ProcessGroup.BackendType.GLOO, "cpu"
        gloo = dist.ProcessGroupGloo._Options()
        gloo._devices = _gloo_devices(os.getpid(), os.environ.get("GLOO_SOCKET_IFNAME", ""))
        gloo._timeout = timeout
        engine = dist.ProcessGroupGloo(store, rank, size, gloo)
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, engine)
    return group


@cache
def _gloo_devices(process: int, interfaces: str) -> list[Any]:
    """The devices of all gloo groups of a process; gloo by itself makes new ones for each group.

    A device has a thread that wakes a hundred times a second: those of a hundred idle groups take 7 % of a core.

    Args:
        process: its number; a fork of it has none of its threads, and needs devices of its own.
        interfaces: names of networks, with commas between them; "" for what the host's name leads to.
    """
    if not interfaces:
        return [dist.ProcessGroupGloo.create_default_device()]
    return [dist.ProcessGroupGloo.create_device(interface=name) for name in interfaces.split(",")]


def introduce(carrier: ProcessGroup, ranks: tuple[int, ...], backend: str) -> None:
    """Tell torch of a group that it has not made: batches of sends and receives are made only on groups that it knows.

    Args:
        carrier: the group.
        ranks: global ranks, in group order.
        backend: what it is.
    """
    c10d._world.pg_group_ranks[carrier] = {rank: place for place, rank in enumerate(ranks)}
    c10d._world.pg_map[carrier] = (backend, None)


def drop(group: ProcessGroup) -> None:
    """Destroy a group that torch has made; forget one that was introduced to it, whose owner ends it."""
    if group in c10d._world.pg_names:
        dist.destroy_process_group(group)
    else:
        del c10d._world.pg_group_ranks[group], c10d._world.pg_map[group]


def members(options: Any) -> tuple[int, ...]:
    """The global ranks that `options` of a new group name, in its order."""
    return tuple(options.global_ranks_in_group) or tuple(range(options.group_size))

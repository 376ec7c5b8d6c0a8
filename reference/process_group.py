"""Process groups written in Python, each over one that torch brings.

torch.distributed hands whatever is said on a group to the group's methods. So whoever writes these hears it
(`trace.tap`), or makes it of sends and receives (`collectives.backend`); torch's own DDP, FSDP and pipelining come
through them, too.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

RENAMED = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
"""Collectives that torch 2.13 calls so, and 2.11 and 2.12 otherwise."""


def have_names_of_today() -> None:
    """Have torch know the new names, too: hints, answers and tests say them, and whoever reads those will."""
    for name, before in RENAMED.items():
        if not hasattr(dist, name):
            setattr(dist, name, getattr(dist, before))


have_names_of_today()  # every rank imports this


class PythonGroup(ProcessGroup):
    """The ranks of another group, and what torch asks any group about itself. What a call does, a subclass says.

    Args:
        carrier: the other group.
        backend: what this one's is called.
    """

    def __init__(self, carrier: ProcessGroup, backend: str) -> None:
        super().__init__(carrier.rank(), carrier.size())
        self.carrier, self._backend_name, self._name, self._desc = carrier, backend, "", ""
        for device in carrier._device_types:
            kind = ProcessGroup.BackendType.NCCL if device.type == "cuda" else ProcessGroup.BackendType.GLOO
            self._register_backend(device, kind, carrier._get_backend(device))

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    def getBackendName(self) -> str:  # noqa: N802
        return self._backend_name


def connect(backend: str, options: Any, timeout: timedelta | None = None) -> ProcessGroup:
    """A plain group of `backend` for the ranks that `options` of a new group name.

    Args:
        backend: "gloo", "nccl", or one that was registered in this process.
        options: what torch hands to the creator of a backend with `extended_api`.
        timeout: of its calls; by default that of `options`.
    """
    if (plugin := dist.Backend._plugins.get(backend.upper())) is not None:
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
        engine = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, engine)
    return group


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

"""Process groups written in Python, each over one that torch brings.

torch.distributed hands whatever is said on a group to the group's methods. So whoever writes these hears it
(`trace.tap`), or makes it of sends and receives (`collectives.backend`); torch's own DDP, FSDP and pipelining come
through them, too.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def called(base: type) -> Callable[[type], type]:
    """Let a subclass go by the name of torch's class: messages of Python and torch name what their reader has heard of.

    To be written above a class of requests or groups, whose objects callers get where torch would give them a `base`.
    """

    def rename(own: type) -> type:
        own.__name__ = own.__qualname__ = base.__name__
        own.__module__ = "torch.distributed"
        return own

    return rename


@called(ProcessGroup)
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
        timeout: of gloo's calls; by default that of `options`.
    """
    if (plugin := dist.Backend._plugins.get(backend.upper())) is not None:
        return plugin.creator_fn(options, None)
    store, rank, size = options.store, options.group_rank, options.group_size
    if backend == dist.Backend.NCCL:
        nccl = dist.ProcessGroupNCCL.Options()
        nccl.global_ranks_in_group, nccl.group_name = options.global_ranks_in_group, options.group_id
        kind, device = ProcessGroup.BackendType.NCCL, "cuda"
        engine = dist.ProcessGroupNCCL(store, rank, size, nccl)
    else:
        kind, device = ProcessGroup.BackendType.GLOO, "cpu"
        engine = dist.ProcessGroupGloo(store, rank, size, timeout=timeout or options.timeout)
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, engine)
    return group


def members(options: Any) -> tuple[int, ...]:
    """The global ranks that `options` of a new group name, in its order."""
    return tuple(options.global_ranks_in_group) or tuple(range(options.group_size))

"""Replicas that drift apart without a wrong call: another seed, a parameter whose gradient is not reduced.

Every message is right, every loss is plausible, and the models are no longer one. So the ranks of a watched cluster
tell the checksum of each parameter after each step, and the supervisor compares them:

    with Cluster(4, watch=True) as cluster:
        cluster.run(train)

    def train():
        model = DistributedDataParallel(...)
        watch_replicas(model)  # compares now, and after each optimizer.step()

It sends nothing between the ranks. It reads every parameter once a step, at about a gigabyte a second.
"""

import sys
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed import ProcessGroup

from ...trace import frames
from ...trace.tap import Tap, world_recorder
from .raw import checksum

if TYPE_CHECKING:  # it imports this
    from .watcher import Watcher


def watch_replicas(model: nn.Module, group: ProcessGroup | None = None) -> Callable[[], None]:
    """Hold the ranks of `group` to one model: the same bits in each parameter, now and after each optimizer step.

    Each of these ranks must call it, for the same models in the same order. A step is one call of `step()` of a torch
    optimizer that holds a parameter of `model`. Where they differ, the call on the cluster raises a `DriftError` that
    names the first such parameter, the ranks and the step.

    Args:
        model: its parameters are plain tensors on the CPU, the same on every rank. Buffers may differ.
        group: the ranks that hold replicas; all, where it is None.

    Returns:
        A function that compares once more: to be called after each step that no torch optimizer takes.

    Raises:
        RuntimeError: this process is not watched, or it is not in the group.
    """
    watcher = world_recorder()
    if not hasattr(watcher, "replicas") or not watcher.on:
        raise RuntimeError("this rank is not watched: watch_replicas works on the ranks of Cluster(..., watch=True)")
    group = torch.distributed.group.WORLD if group is None else group
    if not isinstance(group, ProcessGroup):
        raise RuntimeError("this rank is not in the group: only its members hold a replica")
    replica = Replica(model, group, watcher)
    watcher.replicas.append(replica)
    replica.report()
    return replica.report


class Replica:
    """One rank's model, which is to be the same on all ranks of a group."""

    def __init__(self, model: nn.Module, group: ProcessGroup, watcher: "Watcher") -> None:
        self._model, self._watcher, self._steps = model, watcher, count()
        self._ranks = group.ranks if isinstance(group, Tap) else torch.distributed.get_process_group_ranks(group)
        self._number = len(watcher.replicas)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has taken a step."""
        mine = {id(parameter) for parameter in self._model.parameters()}
        if any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]):
            self.report()

    def report(self) -> None:
        """Report the parameters as they are now."""
        where = frames.own(frames.of_stack(sys._getframe(1)))
        names = self._model.named_parameters()
        self._watcher.report(
            {
                "what": "replica",
                "number": self._number,
                "step": next(self._steps),
                "ranks": list(self._ranks),
                "sums": {name: checksum(p.detach().contiguous()) for name, p in names},
                "file": where.file,
                "line": where.line,
            }
        )

"""A plan and a model in, a parallel model out: the one place where strategies meet."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DeviceMesh, ProcessGroup

from reference.data_parallel.form import DataParallel
from reference.data_parallel.replicated import DistributedDataParallel, Reduce, Replicated, flat, naive
from reference.errors import BadInput
from reference.memory.offload import Offload
from reference.memory.precision import Precision
from reference.memory.recompute import Recompute, recompute
from reference.models import GPT, GPTConfig, create, initial_value
from reference.zero import FullySharded, Sharded, ZeroStage


class Form(StrEnum):
    """Which form of data parallelism: who holds what, and when it travels."""

    NAIVE = "naive"  # replicas; one all-reduce for each gradient, after backward
    FLAT = "flat"  # replicas; one all-reduce of all gradients, after backward
    DDP = "ddp"  # replicas; buckets, while backward goes on
    ZERO1 = "zero1"  # optimizer state in shards
    ZERO2 = "zero2"  # gradients, too
    FSDP = "fsdp"  # parameters, too
    HSDP = "hsdp"  # as FSDP within groups of ranks, and replicas of these groups


@dataclass(frozen=True)
class Plan:
    """How the work is laid out: it decides speed, memory and messages, and never what is learned.

    Raises:
        BadInput: if the numbers make no sense.
    """

    data_parallel: Form | Reduce = Form.FLAT  # or a function that sums the gradients of replicas
    accumulate: int = 1  # micro-batches, of which a rank holds one at a time
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE  # of the optimizer's state
    offload_folder: str = "/var/tmp"  # on a real disk: /tmp is often memory
    replicas: int = 2  # HSDP: how many groups of ranks hold the model

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise BadInput(f"a step has at least 1 micro-batch, not {self.accumulate}")
        if self.replicas < 1:
            raise BadInput(f"a model has at least 1 replica, not {self.replicas}")

    def require_fit(self, ranks: int) -> None:
        """See whether the plan can be laid out on so many ranks.

        Raises:
            BadInput: if it cannot.
        """
        if self.data_parallel is Form.HSDP and ranks % self.replicas:
            raise BadInput(f"{ranks} ranks do not divide into {self.replicas} replicas of the model")

    @property
    def shards_parameters(self) -> bool:
        """True where no rank ever has the model whole."""
        return self.data_parallel in (Form.FSDP, Form.HSDP)


SIMPLEST = Plan()


def parallelize(
    config: GPTConfig, plan: Plan, group: ProcessGroup, device: torch.device, precision: Precision, seed: int = 0
) -> tuple[nn.Module, DataParallel]:
    """Build a GPT as `plan` says, with the initial weights that one process would have.

    Args:
        config: of the model.
        plan: how to lay it out.
        group: the ranks to lay it out on; all call this.
        device: where this rank computes.
        precision: in which dtypes.
        seed: of the weights.

    Returns:
        The model to call, and the form that stands between it and its optimizer.

    Raises:
        BadInput: if the plan does not fit the number of ranks.
    """
    plan.require_fit(dist.get_world_size(group))
    if plan.shards_parameters:
        model = create(GPT, config, seed, "meta", precision.compute)
    else:
        model = create(GPT, config, seed, device, precision.master)
    recompute(model, plan.recompute)
    return model, _form(model, config, plan, group, device, precision, seed)


def _form(
    model: nn.Module,
    config: GPTConfig,
    plan: Plan,
    group: ProcessGroup,
    device: torch.device,
    precision: Precision,
    seed: int,
) -> DataParallel:
    value = partial(initial_value, layers=config.layers, seed=seed)
    match plan.data_parallel:
        case Form.NAIVE:
            return Replicated(model, group, precision, naive)
        case Form.FLAT:
            return Replicated(model, group, precision, flat)
        case Form.DDP:
            return DistributedDataParallel(model, group, precision)
        case Form.ZERO1:
            return Sharded(model, group, ZeroStage.OPTIMIZER, precision)
        case Form.ZERO2:
            return Sharded(model, group, ZeroStage.GRADIENTS, precision)
        case Form.FSDP:
            return FullySharded(model, group, precision, value=value, device=device)
        case Form.HSDP:
            shards, replicas = two_axes(group, plan.replicas, device)
            return FullySharded(model, shards, precision, replicas=replicas, value=value, device=device)
        case reduce:
            return Replicated(model, group, precision, reduce)


def two_axes(group: ProcessGroup, replicas: int, device: torch.device) -> tuple[ProcessGroup, ProcessGroup]:
    """Arrange ranks in rows, one for each replica of the model: [replicas, shards].

    Ranks of one row are neighbours, so that the traffic of sharding stays within a node.

    Returns:
        The ranks that share a replica with this one, and those that hold the same shard.
    """
    ranks = dist.get_process_group_ranks(group)
    rows = torch.tensor(ranks).view(replicas, -1)
    mesh = DeviceMesh(device.type, rows, mesh_dim_names=("replicate", "shard"))
    return mesh.get_group("shard"), mesh.get_group("replicate")

"""A plan and a model in, a parallel model out: the one place where strategies meet."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup

from reference.data_parallel.form import DataParallel
from reference.data_parallel.replicated import DistributedDataParallel, Reduce, Replicated, flat, naive
from reference.errors import BadInput
from reference.memory.offload import Offload
from reference.memory.precision import Precision
from reference.memory.recompute import Recompute, recompute
from reference.models import GPT, GPTConfig, create, initial_value, materialise, token_loss
from reference.sequence_parallel.region import SequenceRegion
from reference.sequence_parallel.ring import RingRegion
from reference.tensor_parallel import vocabulary
from reference.tensor_parallel.form import TwoAxes
from reference.tensor_parallel.gpt import compute_in, placements, split_parameters
from reference.tensor_parallel.layout import Placement, require_fit
from reference.tensor_parallel.region import Region
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
    tensor_parallel: int = 1  # ranks that share every matrix, and read the same windows
    sequence_parallel: bool = False  # what lies between the matrices is shared out by tokens
    async_tensor_parallel: bool = False  # with it: tokens travel slice by slice, while others are multiplied

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise BadInput(f"a step has at least 1 micro-batch, not {self.accumulate}")
        if self.replicas < 1:
            raise BadInput(f"a model has at least 1 replica, not {self.replicas}")
        if self.tensor_parallel < 1:
            raise BadInput(f"tensor parallelism takes at least 1 rank, not {self.tensor_parallel}")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise BadInput("sequence parallelism shares tokens among tensor-parallel ranks: it takes 2 or more of them")
        if self.async_tensor_parallel and not self.sequence_parallel:
            raise BadInput("asynchronous tensor parallelism sends slices of sequences: it takes sequence parallelism")

    def require_fit(self, ranks: int, model: GPTConfig, sequence: int | None = None) -> None:
        """See whether the plan can be laid out on so many ranks.

        Args:
            ranks: of all axes together.
            model: that is to be laid out.
            sequence: tokens in a window, if they are known.

        Raises:
            BadInput: that says what does not divide.
        """
        require_fit(model, self.tensor_parallel, ranks, sequence if self.sequence_parallel else None)
        if self.data_parallel is Form.HSDP and self.readers(ranks) % self.replicas:
            raise BadInput(f"{self.readers(ranks)} ranks do not divide into {self.replicas} replicas of the model")

    def readers(self, ranks: int) -> int:
        """How many of so many ranks read different windows."""
        return ranks // self.tensor_parallel

    @property
    def shards_parameters(self) -> bool:
        """True where data parallelism leaves no rank a whole model."""
        return self.data_parallel in (Form.FSDP, Form.HSDP)


SIMPLEST = Plan()
Loss = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Parallel:
    """A model that is laid out on ranks, as one of them sees it."""

    model: nn.Module  # from tokens [B, S] to this rank's logits
    loss: Loss  # of these logits, as `reference.models.token_loss`; ranks that read the same windows get the same
    form: DataParallel  # between the model and its optimizer
    data: ProcessGroup  # ranks that read different windows, and whose losses add up


def parallelize(
    config: GPTConfig, plan: Plan, group: ProcessGroup, device: torch.device, precision: Precision, seed: int = 0
) -> Parallel:
    """Build a GPT as `plan` says, with the initial weights that one process would have.

    Args:
        config: of the model.
        plan: how to lay it out.
        group: the ranks to lay it out on; all call this. With several axes, all ranks of the world: making groups takes
            everybody.
        device: where this rank computes. On "meta" nothing has values: a plan of a model that fits nowhere here.
        precision: in which dtypes.
        seed: of the weights.

    Raises:
        BadInput: if the plan does not fit the number of ranks or the model.
    """
    plan.require_fit(group.size(), config)
    axes = Axes.of(group, plan, config, device)
    model = create(GPT, config, seed, "meta", precision.compute if plan.shards_parameters else precision.master)
    placed = placements(model, axes.tensor_rank, plan.tensor_parallel)

    def value(name: str, shape: torch.Size) -> Tensor:
        if device.type == "meta":
            return torch.empty(shape, device=device)
        return placed[name].cut(initial_value(name, placed[name].shape, config.layers, seed))

    split_parameters(model, placed)
    if not plan.shards_parameters:
        materialise(model, value, device)
    if axes.tensor is None:
        recompute(model, plan.recompute)
        return Parallel(model, token_loss, _form(model, plan, axes, precision, value, device), axes.data)
    region = _region_of(plan)(axes.tensor, overlap=device.type == "cuda")
    compute_in(model, region)
    recompute(model, plan.recompute)
    partial_sums = {name: group for name in placed if (group := axes.sees_part_of(placed[name], region))}
    form = TwoAxes(_form(model, plan, axes, precision, value, device), placed, axes.tensor, partial_sums)
    loss = partial(vocabulary.token_loss, group=axes.tensor, vocabulary=config.vocabulary)
    return Parallel(model, loss, form, axes.data)


@dataclass(frozen=True)
class Axes:
    """The groups that one rank belongs to. Ranks of the tensor axis are neighbours, since they talk most."""

    data: ProcessGroup  # reads other windows
    shards: ProcessGroup  # of these, those that hold other shards
    replicas: ProcessGroup | None  # and those that hold the same, with hybrid sharding
    tensor: ProcessGroup | None  # has other blocks of the same matrices
    copies: ProcessGroup | None  # of these, those that have the same key-value heads

    @classmethod
    def of(cls, group: ProcessGroup, plan: Plan, config: GPTConfig, device: torch.device) -> "Axes":
        """Arrange the ranks of `group`, which all call this."""
        ranks, t = torch.tensor(dist.get_process_group_ranks(group)), plan.tensor_parallel
        data, shards, replicas, tensor, copies = group, group, None, None, None
        if t > 1:
            mesh = DeviceMesh(device.type, ranks.view(-1, t), mesh_dim_names=("data", "tensor"))
            tensor = group if t == group.size() else mesh.get_group("tensor")
            shards = data = mesh.get_group("data")
        if plan.data_parallel is Form.HSDP:
            names = ("replicate", "shard", "tensor")
            mesh = DeviceMesh(device.type, ranks.view(plan.replicas, -1, t), mesh_dim_names=names)
            shards, replicas = mesh.get_group("shard"), mesh.get_group("replicate")
        if t > config.kv_heads:
            names = ("data", "head", "copy")
            mesh = DeviceMesh(device.type, ranks.view(-1, config.kv_heads, t // config.kv_heads), mesh_dim_names=names)
            copies = mesh.get_group("copy")
        return cls(data, shards, replicas, tensor, copies)

    @property
    def tensor_rank(self) -> int:
        """Which block of the matrices is this rank's."""
        return self.tensor.rank() if self.tensor else 0

    def sees_part_of(self, where: Placement, region: Region) -> ProcessGroup | None:
        """The ranks whose gradients of a parameter add up; None where they are the same, or each has its own."""
        if where.copies == self.tensor.size():
            return self.tensor if region.slices_tokens or where.is_split else None
        return self.copies if where.copies > 1 else None


def _region_of(plan: Plan) -> type[Region]:
    """What happens where ranks of the tensor axis begin and end to share work."""
    if plan.async_tensor_parallel:
        return RingRegion
    return SequenceRegion if plan.sequence_parallel else Region


def _form(
    model: nn.Module,
    plan: Plan,
    axes: Axes,
    precision: Precision,
    value: Callable[[str, torch.Size], Tensor],
    device: torch.device,
) -> DataParallel:
    """The form of data parallelism, over this rank's model."""
    match plan.data_parallel:
        case Form.NAIVE:
            return Replicated(model, axes.data, precision, naive)
        case Form.FLAT:
            return Replicated(model, axes.data, precision, flat)
        case Form.DDP:
            return DistributedDataParallel(model, axes.data, precision)
        case Form.ZERO1:
            return Sharded(model, axes.data, ZeroStage.OPTIMIZER, precision)
        case Form.ZERO2:
            return Sharded(model, axes.data, ZeroStage.GRADIENTS, precision)
        case Form.FSDP | Form.HSDP:
            return FullySharded(model, axes.shards, precision, replicas=axes.replicas, value=value, device=device)
        case reduce:
            return Replicated(model, axes.data, precision, reduce)

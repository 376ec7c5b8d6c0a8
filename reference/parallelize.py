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
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.form import AlongPipeline
from reference.pipeline_parallel.orders import forward_only
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.split_backward import Later
from reference.pipeline_parallel.stages import Stage, Stages, balanced
from reference.sequence_parallel.region import SequenceRegion
from reference.sequence_parallel.ring import RingRegion
from reference.tensor_parallel import vocabulary
from reference.tensor_parallel.form import TwoAxes
from reference.tensor_parallel.gpt import compute_in, placements, split_parameters
from reference.tensor_parallel.layout import Placement, require_fit
from reference.tensor_parallel.region import Region
from reference.zero import FullySharded, Sharded, ZeroStage
from reference.zero_bubble import orders as zero_bubble


class Form(StrEnum):
    """Which form of data parallelism: who holds what, and when it travels."""

    NAIVE = "naive"  # replicas; one all-reduce for each gradient, after backward
    FLAT = "flat"  # replicas; one all-reduce of all gradients, after backward
    DDP = "ddp"  # replicas; buckets, while backward goes on
    ZERO1 = "zero1"  # optimizer state in shards
    ZERO2 = "zero2"  # gradients, too
    FSDP = "fsdp"  # parameters, too
    HSDP = "hsdp"  # as FSDP within groups of ranks, and replicas of these groups


class Order(StrEnum):
    """In which order the ranks of a pipeline compute."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"  # chunks: how many stages a rank has
    BREADTH_FIRST = "breadth-first"  # likewise
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"  # two stages on each rank
    DUAL_PIPE_V = "dualpipev"  # likewise

    def schedule(self, p: int, m: int, chunks: int) -> Schedule:
        """For p ranks, m micro-batches, and so many stages on a rank where the order leaves that open."""
        match self:
            case Order.INTERLEAVED:
                return orders.interleaved(p, m, chunks)
            case Order.BREADTH_FIRST:
                return orders.breadth_first(p, m, chunks)
        plain = {
            Order.GPIPE: orders.gpipe,
            Order.ONE_F_ONE_B: orders.one_f_one_b,
            Order.ZB_H1: zero_bubble.zb_h1,
            Order.ZB_H2: zero_bubble.zb_h2,
            Order.ZB_V: zero_bubble.zb_v,
            Order.DUAL_PIPE_V: zero_bubble.dual_pipe_v,
        }
        return plain[self](p, m)


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
    pipeline_parallel: int = 1  # ranks that share the layers; micro-batches pass through them
    schedule: Order = Order.ONE_F_ONE_B
    chunks: int = 2  # stages on a rank, with interleaved and breadth-first

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
        if self.pipeline_parallel < 1 or self.chunks < 1:
            raise BadInput(f"a pipeline has 1 rank or more, and 1 chunk or more on each: {self}")
        if self.pipeline_parallel > 1 and self.data_parallel not in IN_PIPELINES:
            raise BadInput(f"a pipeline goes with {', '.join(IN_PIPELINES)}, and not yet with {self.data_parallel}")

    def require_fit(self, ranks: int, model: GPTConfig, sequence: int | None = None) -> None:
        """See whether the plan can be laid out on so many ranks.

        Args:
            ranks: of all axes together.
            model: that is to be laid out.
            sequence: tokens in a window, if they are known.

        Raises:
            BadInput: that says what does not divide.
        """
        p = self.pipeline_parallel
        if ranks % p:
            raise BadInput(f"{ranks} ranks do not divide into pipelines of {p}")
        require_fit(model, self.tensor_parallel, ranks // p, sequence if self.sequence_parallel else None)
        if p > 1 and (stages := self.pipeline().stages) > model.layers:
            raise BadInput(f"{model.layers} layers do not make {stages} stages, as {self.schedule} has on {p} ranks")
        if p > 1 and model.tied and self.data_parallel is Form.ZERO1:
            raise BadInput("zero1 cuts the two copies of a tied table differently: take naive, flat or ddp with it")
        if self.data_parallel is Form.HSDP and self.readers(ranks) % self.replicas:
            raise BadInput(f"{self.readers(ranks)} ranks do not divide into {self.replicas} replicas of the model")

    def readers(self, ranks: int) -> int:
        """How many of so many ranks read different windows."""
        return ranks // self.tensor_parallel // self.pipeline_parallel

    def pipeline(self) -> Schedule:
        """What the ranks of a pipeline compute in a step."""
        return self.schedule.schedule(self.pipeline_parallel, self.accumulate, self.chunks)

    @property
    def splits_backward(self) -> bool:
        """True where a pipeline makes gradients of weights later than those of inputs."""
        return any(action.kind is Kind.WEIGHT for line in self.pipeline().lines for action in line)

    @property
    def shards_parameters(self) -> bool:
        """True where data parallelism leaves no rank a whole model."""
        return self.data_parallel in (Form.FSDP, Form.HSDP)


IN_PIPELINES = (Form.NAIVE, Form.FLAT, Form.DDP, Form.ZERO1)
SIMPLEST = Plan()
Loss = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Parallel:
    """A model that is laid out on ranks, as one of them sees it."""

    model: nn.Module  # from tokens [B, S] to this rank's logits; in a pipeline, this rank's stages
    loss: Loss  # of these logits, as `reference.models.token_loss`; ranks that read the same windows get the same
    form: DataParallel  # between the model and its optimizer
    data: ProcessGroup  # ranks that read different windows
    losses: ProcessGroup  # ranks whose losses add up: these, and in a pipeline those that have other stages
    pipeline: Pipeline | None = None
    inference: Callable[[int], Pipeline] | None = None  # of so many micro-batches: forward alone


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
    dtype = precision.compute if plan.shards_parameters else precision.master
    model = create(partial(_part_of, plan=plan, axes=axes), config, seed, "meta", dtype)
    placed = placements(model, axes.tensor_rank, plan.tensor_parallel)

    def value(name: str, shape: torch.Size) -> Tensor:
        if device.type == "meta":
            return torch.empty(shape, device=device)
        return placed[name].cut(initial_value(name, placed[name].shape, config.layers, seed))

    split_parameters(model, placed)
    if not plan.shards_parameters:
        materialise(model, value, device)
    later = Later(model) if axes.pipe and plan.splits_backward else None  # first: regions put theirs in its place
    pieces = list(model.by_number.values()) if axes.pipe else [model]
    region = axes.tensor and _region_of(plan)(axes.tensor, overlap=device.type == "cuda")
    for piece in pieces:
        if region:
            compute_in(piece, region)
        recompute(piece, plan.recompute)
    pipelines = _pipelines(model, plan, axes, device, later) if axes.pipe else (None, None)
    form, loss = _form(model, plan, axes, precision, value, device), token_loss
    if region:
        partial_sums = {name: group for name in placed if (group := axes.sees_part_of(placed[name], region))}
        form = TwoAxes(form, placed, axes.tensor, partial_sums)
        loss = partial(vocabulary.token_loss, group=axes.tensor, vocabulary=config.vocabulary)
    if axes.pipe:
        form = AlongPipeline(form, axes.pipe, axes.ends)
    return Parallel(model, loss, form, axes.data, axes.losses, *pipelines)


@dataclass(frozen=True)
class Axes:
    """The groups that one rank belongs to. Ranks of the tensor axis are neighbours, since they talk most."""

    data: ProcessGroup  # reads other windows
    shards: ProcessGroup  # of these, those that hold other shards
    replicas: ProcessGroup | None  # and those that hold the same, with hybrid sharding
    tensor: ProcessGroup | None  # has other blocks of the same matrices
    copies: ProcessGroup | None  # of these, those that have the same key-value heads
    pipe: ProcessGroup | None = None  # has other layers
    back: ProcessGroup | None = None  # the same ranks once more, for what goes the other way
    ends: ProcessGroup | None = None  # of these, the two that have a tied table
    losses: ProcessGroup | None = None  # data and pipe together

    @classmethod
    def of(cls, group: ProcessGroup, plan: Plan, config: GPTConfig, device: torch.device) -> "Axes":
        """Arrange the ranks of `group`, which all call this."""
        ranks, t = torch.tensor(dist.get_process_group_ranks(group)), plan.tensor_parallel
        if plan.pipeline_parallel > 1:
            return cls._with_pipe(ranks, plan, config)
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
        return cls(data, shards, replicas, tensor, copies, losses=data)

    @classmethod
    def _with_pipe(cls, ranks: Tensor, plan: Plan, config: GPTConfig) -> "Axes":
        """[pipe, data, tensor]: stages talk least."""
        t = plan.tensor_parallel
        mesh = ranks.view(plan.pipeline_parallel, -1, t)
        data = line(mesh.movedim(1, -1))
        pipe, back = (line(mesh.movedim(0, -1)) for _ in range(2))
        tensor = line(mesh) if t > 1 else None
        copies = line(mesh.unflatten(-1, (config.kv_heads, -1))) if t > config.kv_heads else None
        first, last = (plan.pipeline().placement[stage] for stage in (0, -1))
        ends = line(torch.stack([mesh[first], mesh[last]], dim=-1)) if config.tied and first != last else None
        return cls(data, data, None, tensor, copies, pipe, back, ends, losses=line(mesh.flatten(0, 1).T))

    @property
    def tensor_rank(self) -> int:
        """Which block of the matrices is this rank's."""
        return self.tensor.rank() if self.tensor else 0

    def sees_part_of(self, where: Placement, region: Region) -> ProcessGroup | None:
        """The ranks whose gradients of a parameter add up; None where they are the same, or each has its own."""
        if where.copies == self.tensor.size():
            return self.tensor if region.slices_tokens or where.is_split else None
        return self.copies if where.copies > 1 else None


def line(ranks: Tensor) -> ProcessGroup | None:
    """The group of this rank's line along the last axis of a mesh; None if it is on none. All ranks call this."""
    mine = None
    for members in ranks.reshape(-1, ranks.shape[-1]).tolist():
        group = dist.new_group(members)
        if dist.get_rank() in members:
            mine = group
    return mine


def _part_of(config: GPTConfig, plan: Plan, axes: Axes) -> nn.Module:
    """The model, or this rank's stages of it."""
    if axes.pipe is None:
        return GPT(config)
    schedule, block = plan.pipeline(), (config.parameters - config.vocabulary * config.width) // config.layers
    costs = [block] * (config.layers - 1) + [block + config.vocabulary * config.width]  # the head is behind the last
    pieces = balanced(costs, schedule.stages)
    own = (stage for stage, rank in enumerate(schedule.placement) if rank == axes.pipe.rank())
    return Stages({stage: Stage(config, pieces[stage]) for stage in own})


def _pipelines(
    model: Stages, plan: Plan, axes: Axes, device: torch.device, later: Later | None
) -> tuple[Pipeline, Callable[[int], Pipeline]]:
    """For training, and for inference with any number of micro-batches."""
    schedule = plan.pipeline()
    training = Pipeline(schedule, model.by_number, axes.pipe, axes.back, device, later)

    def inference(m: int) -> Pipeline:
        return Pipeline(forward_only(schedule, m), model.by_number, axes.pipe, axes.back, device)

    return training, inference


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

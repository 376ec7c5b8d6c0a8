"""A plan and a model in, a parallel model out: the one place where strategies meet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial, reduce

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference import on_gpus
from reference.choices import ContextMethod
from reference.collectives.default import Communicate, over
from reference.context_parallel.attention import ContextAttention
from reference.context_parallel.methods import context_attention
from reference.context_parallel.ops import ContextParallel
from reference.data_parallel.gradient_sync import DataParallel, GradientSync
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, naive, through
from reference.engine import Engine, ForwardOnly, OneStage
from reference.errors import BadInput
from reference.groups import Groups, mine_of
from reference.memory.fast.fused import Fused
from reference.memory.precision import Precision
from reference.memory.recompute import recomputing
from reference.mesh import DATA, GRADIENTS, TENSOR
from reference.models import ModelConfig, architecture, create, initial_value, materialise, token_loss
from reference.models.layout import Layout
from reference.models.ops import PLAIN, Ops, equip
from reference.on_mesh import Along, OnMesh
from reference.pipeline_parallel.channels import channels_of, ends_of
from reference.pipeline_parallel.folded import busiest
from reference.pipeline_parallel.orders import forward_only
from reference.pipeline_parallel.per_stage_sync import PerStageSync
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.split_backward import Deferred, DeferredWeightGradients
from reference.pipeline_parallel.stages import Stages, TiedTable, pieces_of, stage_of
from reference.plan import DEFAULT_PLAN, DataParallelism, PipelineSchedule, Plan
from reference.sequence_parallel.fast.ring import RingRegion
from reference.sequence_parallel.region import SequenceRegion
from reference.sharding import Placement, Spec
from reference.tensor_parallel import vocabulary
from reference.tensor_parallel.layout import spec_of
from reference.tensor_parallel.ops import TensorParallel, split_parameters
from reference.tensor_parallel.region import Region
from reference.zero import FullySharded, FullyShardedByProgram, Sharded, ZeroStage

__all__ = ["DEFAULT_PLAN", "DataParallelism", "Parallel", "PipelineSchedule", "Plan", "parallelize"]

TABLE = "embedding.weight"  # of a tied model, also its head
USP_RING, USP_HEADS = "cp_ring", "cp_heads"  # of ranks that share windows: a ring across, and neighbours
Loss = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Parallel:
    """A model that is laid out on ranks, as one of them sees it."""

    model: nn.Module  # from tokens [B, S] to this rank's logits; in a pipeline, this rank's stages
    loss: Loss  # of these logits, as `reference.models.token_loss`; ranks that read the same windows get the same
    form: GradientSync  # between the model and its optimizer
    data: ProcessGroup  # ranks that read different windows
    loss_group: ProcessGroup  # ranks whose losses add up: all that read other tokens, or have other stages
    engine: Engine  # takes micro-batches forward and backward
    inference: Callable[[torch.Size], Engine]  # of one micro-batch of tokens of this shape: forward alone


def parallelize(
    config: ModelConfig,
    plan: Plan,
    group: ProcessGroup,
    device: torch.device,
    precision: Precision,
    seed: int = 0,
    communicate: Communicate = over,
    sequence: int | None = None,
) -> Parallel:
    """Build a model as `plan` says, with the initial weights that one process would have.

    Args:
        config: of the model.
        plan: how to lay it out.
        group: the ranks to lay it out on, which all call this. With several axes, all ranks of the world.
        device: where this rank computes. On "meta" nothing has values: a plan of a model that fits nowhere here.
        precision: in which dtypes.
        seed: of the weights.
        communicate: makes the communicator of a group of ranks; all that strategies say goes through these.
        sequence: tokens of a window. Only context parallelism, whose ranks hold parts of it, must know.

    Raises:
        BadInput: if the plan does not fit the number of ranks or the model.
    """
    plan.require_fit(group.size(), config, sequence)
    groups = groups_of(plan, group, config, communicate)
    if on_gpus.is_gpu(device):
        groups.connect(device)
    dtype = precision.compute if plan.shards_parameters else precision.master
    model = create(partial(_part_of, plan=plan, groups=groups), config, seed, "meta", dtype)
    placed = {
        name: Placement.of(parameter.shape, _spec(name, config.layout, plan, groups), groups.mesh, group.rank())
        for name, parameter in model.named_parameters()
    }

    def value(name: str, shape: torch.Size) -> Tensor:
        if device.type == "meta":
            return torch.empty(shape, device=device)
        return placed[name].cut(initial_value(name, placed[name].shape, config.layers, seed))

    split_parameters(model, placed)
    if not plan.shards_parameters:
        materialise(model, value, device)
    is_pipeline, is_split = plan.pipeline_parallel > 1, plan.tensor_parallel > 1
    deferred = DeferredWeightGradients() if is_pipeline else None
    region = _region(plan, groups, overlap=on_gpus.is_gpu(device)) if is_split else None
    equip(model, lambda _: ops_of(plan, region, deferred, _context(plan, groups, sequence)))
    make_form = partial(_form, plan=plan, groups=groups, precision=precision, value=value, device=device)
    form = _form_of_stages(model, make_form) if is_pipeline else make_form(model)
    of_stages = form
    if is_pipeline or is_split:
        form = OnMesh([Along(form, plan.shard_axes)], placed, groups, plan.split_axes)
    if is_pipeline:
        engine, inference = _pipelines(model, plan, groups, device, deferred, of_stages)
    else:
        engine, inference = OneStage(model, form, plan.micro_batches), lambda _: ForwardOnly(model)
    loss = _loss(groups, config) if region else token_loss
    return Parallel(model, loss, form, groups.along(*DATA), groups.along("pp", *GRADIENTS), engine, inference)


def groups_of(plan: Plan, group: ProcessGroup, config: ModelConfig, communicate: Communicate = over) -> Groups:
    """All groups that a plan needs, made in one order by all ranks of `group`."""
    groups = Groups(group, plan.mesh(group.size(), config), communicate)
    several = [(axis,) for axis in groups.mesh.names if groups.mesh.size(axis) > 1]
    for axes in (*several, DATA, GRADIENTS, ("pp", *GRADIENTS)):
        groups.along(*axes)
    if plan.tensor_parallel > 1:
        groups.along(*TENSOR)
    if plan.context_method is ContextMethod.USP:
        families = {USP_RING: plan.context_parallel // plan.neighbours, USP_HEADS: plan.neighbours}
        for axis in families:
            groups.add(axis, mine_of(group, groups.mesh.view(families, of=("cp",)).groups(axis)))
    if plan.pipeline_parallel > 1 and config.tied:
        ends = ends_of(group, groups.mesh, plan.timetable())
        if ends is not None:
            groups.add("pp_ends", ends)
    return groups


def _spec(name: str, layout: Layout, plan: Plan, groups: Groups) -> Spec:
    """What the axes of the mesh do to the parameter called `name`, on a rank that has it."""
    spec = spec_of(name, layout, slices_tokens=plan.sequence_parallel)
    if plan.pipeline_parallel == 1:
        return spec
    at_both_ends = {"pp_ends"} if name == TABLE and groups.is_beside("pp_ends") else ()
    return replace(spec, split={**spec.split, "pp": None}, partial=spec.partial.union(at_both_ends))


def _part_of(config: ModelConfig, plan: Plan, groups: Groups) -> nn.Module:
    """The model, or this rank's stages of it."""
    if plan.pipeline_parallel == 1:
        return architecture(config)
    schedule = plan.timetable()
    pieces, own = pieces_of(config, schedule.stages), schedule.stages_on(groups.at["pp"])
    table = TiedTable(config) if config.tied and {0, schedule.stages - 1} & set(own) else None
    return Stages({stage: stage_of(config, pieces[stage], table) for stage in own}, table)


def ops_of(
    plan: Plan,
    region: Region | None,
    deferred: DeferredWeightGradients | None,
    context: ContextAttention | None = None,
) -> Ops:
    """What the layers of a model ask for what they compute: the one list of what stands around what.

    Args:
        plan: how the work is laid out.
        region: of the tensor axes, if there are any.
        deferred: where weight gradients of a pipeline's stages wait, if it is one.
        context: how tokens look at those of other ranks, if ranks share windows.
    """
    inside_out: list[Callable[[Ops], Ops]] = [
        # These make the products, on one rank or on several: so they stand inside.
        lambda ops: TensorParallel(region) if region else Fused() if deferred else ops,
        # Tokens look at each other in here alone: everything else treats those that this rank has.
        lambda ops: ContextParallel(ops, context) if context else ops,
        # Asks them for products of whose weights autograd knows nothing, and for what a weight's gradient needs.
        lambda ops: Deferred(ops, deferred) if deferred else ops,
        # Forgets what all of those save, and runs all of them again: so it stands outside.
        recomputing(plan.recompute),
    ]
    return reduce(lambda ops, around: around(ops), inside_out, PLAIN)


def _region(plan: Plan, groups: Groups, overlap: bool) -> Region:
    """What happens where ranks of the tensor axes begin and end to share work."""
    kind = Region
    if plan.sequence_parallel:
        kind = RingRegion if plan.async_tensor_parallel else SequenceRegion
    return kind(groups.communicator(*TENSOR), overlap)


def _context(plan: Plan, groups: Groups, sequence: int | None) -> ContextAttention | None:
    """How tokens look at those of other ranks; None where no other rank has any of the same window."""
    if plan.context_parallel == 1:
        return None
    if sequence is None:
        raise BadInput("context parallelism shares out windows: say how many tokens one has")
    pair = [groups.communicator(USP_HEADS), groups.communicator(USP_RING)] if groups.is_beside(USP_RING) else []
    return context_attention(plan.context_method, plan.layout(sequence), groups.communicator("cp"), *pair)


def _loss(groups: Groups, config: ModelConfig) -> Loss:
    """Of logits of which each rank of the tensor axes has some."""
    return partial(vocabulary.token_loss, group=groups.communicator(*TENSOR), vocabulary=config.vocabulary)


def _form_of_stages(model: Stages, make_form: Callable[[nn.Module], DataParallel]) -> PerStageSync:
    """A form for each of this rank's stages, and for the table that they use."""
    forms = {number: make_form(stage) for number, stage in model.by_number.items()}
    return PerStageSync(forms, make_form(model.table) if model.table else None)


def _pipelines(
    model: Stages,
    plan: Plan,
    groups: Groups,
    device: torch.device,
    deferred: DeferredWeightGradients,
    form: PerStageSync,
) -> tuple[Pipeline, Callable[[torch.Size], Pipeline]]:
    """For training, and for inference: one for each shape of tokens, since all messages of a pipeline have one."""
    channels = None
    if on_gpus.is_gpu(device):
        on_gpus.require_connections(busiest(plan.timetable()))
        ends = channels_of(groups.all, groups.mesh, plan.timetable(), device)
        channels = {channel: groups.communicator_of(group) for channel, group in ends.items()}
    is_replicated = plan.scatter_gather and plan.tensor_parallel > 1 and not plan.sequence_parallel
    copies = groups.communicator(*TENSOR) if is_replicated else None
    options = {"deferred": deferred, "form": form, "channels": channels, "copies": copies}

    def pipeline(schedule: Schedule) -> Pipeline:
        return Pipeline(schedule, model.by_number, groups.communicator("pp"), device, **options)

    return pipeline(plan.timetable()), cache(lambda shape: pipeline(forward_only(plan.timetable(), m=1)))


def _form(
    model: nn.Module,
    plan: Plan,
    groups: Groups,
    precision: Precision,
    value: Callable[[str, torch.Size], Tensor],
    device: torch.device,
) -> DataParallel:
    """The form of data parallelism, over this rank's model."""
    data = groups.communicator(*GRADIENTS)
    match plan.data_parallel:
        case DataParallelism.NAIVE:
            return Replicated(model, data, precision, partial(naive, all_reduce=through(data)))
        case DataParallelism.FLAT:
            return Replicated(model, data, precision)
        case DataParallelism.DDP:
            return DistributedDataParallel(model, data, precision)
        case DataParallelism.ZERO1:
            return Sharded(model, data, ZeroStage.OPTIMIZER, precision)
        case DataParallelism.ZERO2:
            return Sharded(model, data, ZeroStage.GRADIENTS, precision)
        case DataParallelism.FSDP | DataParallelism.HSDP:
            replicas = groups.communicator("dp_replicate") if plan.replicas > 1 else None
            shards = groups.communicator("dp_shard", "cp")
            kind = FullySharded if plan.pipeline_parallel == 1 else FullyShardedByProgram
            return kind(model, shards, precision, replicas=replicas, value=value, device=device)
        case reduce:
            return Replicated(model, data, precision, reduce)

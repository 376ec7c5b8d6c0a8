"""A plan and a model in, a parallel model out: the one place where strategies meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from math import inf
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference import on_gpus
from reference.choices import ContextMethod, LinearNumbers, WireFormat
from reference.collectives.communicator import Communicator
from reference.collectives.default import Communicate, over
from reference.compression.compressed import Compressed
from reference.compression.delayed import Delayed, PastScales
from reference.compression.fast.tiles import TILED
from reference.compression.gathered import EightBits
from reference.compression.low_bits import LowBits
from reference.compression.memory import MakeCompressor
from reference.compression.plain_low_bits import FP8, INT8
from reference.compression.quantised import Quantised, QuantisedOnNodes
from reference.context_parallel.attention import ContextAttention
from reference.context_parallel.methods import context_attention
from reference.context_parallel.ops import ContextParallel
from reference.data_parallel.gradient_sync import DataParallel, GradientSync
from reference.data_parallel.replicated import BUCKET_BYTES, DistributedDataParallel, Replicated, naive, through
from reference.engine import Engine, ForwardOnly, OneStage
from reference.errors import BadInput
from reference.expert_parallel.dispatch import Dispatch
from reference.expert_parallel.lifted import lift_experts
from reference.expert_parallel.ops import ExpertParallel, TokenRanks
from reference.expert_parallel.two_level import TwoLevelDispatch
from reference.groups import Groups, mine_of
from reference.memory.fast.fused import Fused
from reference.memory.precision import Precision
from reference.memory.recompute import recomputing
from reference.mesh import DATA, EXPERT_GRADIENTS, GRADIENTS, TENSOR
from reference.models import ModelConfig, architecture, create, initial_value, materialise, token_loss
from reference.models.layout import SplitExperts, split_of
from reference.models.ops import PLAIN, Ops, equip
from reference.on_mesh import Along, OnMesh
from reference.pipeline_parallel.channels import channels_of, ends_of
from reference.pipeline_parallel.folded import busiest
from reference.pipeline_parallel.orders import forward_only
from reference.pipeline_parallel.per_stage_sync import PerStageSync, SyncOfAll
from reference.pipeline_parallel.run import Pipeline, StageSync
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
from reference.zero.choice import units_of
from reference.zero.unit import Rounded

__all__ = ["DEFAULT_PLAN", "DataParallelism", "Parallel", "PipelineSchedule", "Plan", "parallelize"]

SHARDS = ("dp_shard", "cp")  # ranks that share parameters
TABLE = "embedding.weight"  # of a tied model, also its head
USP_RING, USP_HEADS = "cp_ring", "cp_heads"  # of ranks that share windows: a ring across, and neighbours
HPZ = "hpz"  # of ranks that share parameters: those of a node, with a second copy
QGZ_NODES, QGZ_INSIDE = "qgz_nodes", "qgz_inside"  # likewise: across nodes, and inside one, to sum gradients
EP_NODES, EP_INSIDE = "ep_nodes", "ep_inside"  # of ranks that share out experts: across nodes, and inside one
NUMBERS = MappingProxyType({LinearNumbers.FP8: FP8, LinearNumbers.FP8_DELAYED: FP8, LinearNumbers.INT8: INT8})
TOGETHER = {DataParallelism.NAIVE: 0, DataParallelism.FLAT: inf, DataParallelism.DDP: BUCKET_BYTES}
"""Bytes of parameters whose compressed gradients travel together."""

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
    parameters: Mapping[str, nn.Parameter]  # that get gradients here, by the names of the whole model
    scales: PastScales | None = None  # of linear layers, from the steps before, if they have such


def parallelize(
    config: ModelConfig,
    plan: Plan,
    group: ProcessGroup,
    device: torch.device,
    precision: Precision,
    seed: int = 0,
    communicate: Communicate = over,
    sequence: int | None = None,
    linear: LinearNumbers = LinearNumbers.SAME,
    compressor: MakeCompressor | None = None,
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
        linear: of what numbers the products of linear layers are.
        compressor: sums the gradients of replicas, where they are not sent as they are.

    Raises:
        BadInput: if the plan does not fit the number of ranks or the model.
    """
    plan.require_fit(group.size(), config, sequence)
    groups = groups_of(plan, group, config, communicate)
    of_experts = expert_groups_of(plan, group, config, communicate) if config.experts else None
    if on_gpus.is_gpu(device):
        groups.connect(device)
        if of_experts:
            of_experts.connect(device)
    dtype = precision.compute if plan.shards_parameters else precision.master
    model = create(partial(_part_of, plan=plan, groups=groups), config, seed, "meta", dtype)
    laid = lay_out(model, config, plan, groups, of_experts, device, precision, seed, sequence, linear, compressor)
    if plan.pipeline_parallel > 1:
        engine, inference = _pipelines(model, plan, groups, device, laid.deferred, laid.of_stages)
    else:
        engine, inference = OneStage(model, laid.form, plan.micro_batches), lambda _: ForwardOnly(model)
    losses = groups.along("pp", *GRADIENTS)
    modules = (model, *laid.lifted.values())
    here = {name: parameter for each in modules for name, parameter in each.named_parameters()}
    return Parallel(model, laid.loss, laid.form, groups.along(*DATA), losses, engine, inference, here, laid.scales)


@dataclass(frozen=True)
class LaidOut:
    """A model, or some stages of one, whose layers compute as a plan says, and whose parameters are where it says."""

    placed: Mapping[str, Placement]  # of each parameter
    form: GradientSync  # between the model and its optimizer
    of_stages: SyncOfAll | None  # what a pipeline asks of it
    deferred: DeferredWeightGradients | None  # of a pipeline's stages
    lifted: Mapping[nn.Module, nn.Module]  # the experts of a model, or of its stages
    loss: Loss
    scales: PastScales | None  # of linear layers, from the steps before


def lay_out(
    model: nn.Module,
    config: ModelConfig,
    plan: Plan,
    groups: Groups,
    of_experts: Groups | None,
    device: torch.device,
    precision: Precision,
    seed: int = 0,
    sequence: int | None = None,
    linear: LinearNumbers = LinearNumbers.SAME,
    compressor: MakeCompressor | None = None,
) -> LaidOut:
    """Give a model on the meta device, in place, the ops and the blocks of parameters that a plan gives this rank.

    Args:
        model: the whole, or the stages of a rank of a pipeline.
        config, plan, device, precision, seed, sequence, linear, compressor: as for `parallelize`.
        groups: of this rank.
        of_experts: the same as layers of experts see the ranks, if there are any.
    """
    placed = {
        name: _placement(name, parameter.shape, config, plan, groups, of_experts)
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
    experts = _experts(config, plan, groups, of_experts) if of_experts else None
    scales = _past_scales(model, groups) if linear is LinearNumbers.FP8_DELAYED else None
    low_bits = _low_bits(linear, plan, groups, scales)
    equip(model, lambda _: ops_of(plan, region, deferred, _context(plan, groups, sequence), experts, low_bits))
    lifted = lift_experts(model) if of_experts else {}
    make_form = partial(_form, plan=plan, precision=precision, value=value, device=device, compressor=compressor)
    if linear is not LinearNumbers.SAME and plan.shards_parameters:
        shards = groups.communicator("dp_shard", "cp", *TENSOR)
        make_form = partial(make_form, rounded=EightBits(NUMBERS[linear], shards))
    forms = _forms(model, lifted, plan, groups, of_experts, make_form)
    form = forms[0].form
    if is_pipeline or is_split or of_experts:
        form = OnMesh(forms, placed, groups, plan.split_axes)
    of_stages = SyncOfAll([each.form for each in forms]) if is_pipeline else None
    loss = _loss(groups, config) if region else token_loss
    return LaidOut(placed, form, of_stages, deferred, lifted, loss, scales)


def groups_of(plan: Plan, group: ProcessGroup, config: ModelConfig, communicate: Communicate = over) -> Groups:
    """All groups that a plan needs, made in one order by all ranks of `group`."""
    groups = Groups(group, plan.mesh(group.size(), config), communicate)
    several = [(axis,) for axis in groups.mesh.names if groups.mesh.size(axis) > 1]
    for axes in (*several, DATA, GRADIENTS, ("pp", *GRADIENTS)):
        groups.along(*axes)
    groups.along(*GRADIENTS, *TENSOR)
    if config.experts:
        groups.along("cp", *TENSOR)
    if plan.tensor_parallel > 1:
        groups.along(*TENSOR)
    if plan.context_method is ContextMethod.USP:
        families = {USP_RING: plan.context_parallel // plan.neighbours, USP_HEADS: plan.neighbours}
        for axis in families:
            groups.add(axis, mine_of(group, groups.mesh.view(families, of=("cp",)).groups(axis)))
    for size, names in ((plan.secondary_shards, (None, HPZ)), (plan.ranks_per_node, (QGZ_NODES, QGZ_INSIDE))):
        if size > 1:
            families = dict(zip(("nodes", "inside"), (groups.mesh.size(*SHARDS) // size, size), strict=True))
            view = groups.mesh.view(families, of=SHARDS)
            for name, axis in zip(names, families, strict=True):
                if name:
                    groups.add(name, mine_of(group, view.groups(axis)))
    if plan.pipeline_parallel > 1 and config.tied:
        ends = ends_of(group, groups.mesh, plan.timetable())
        if ends is not None:
            groups.add("pp_ends", ends)
    return groups


def expert_groups_of(plan: Plan, group: ProcessGroup, config: ModelConfig, communicate: Communicate = over) -> Groups:
    """All groups of the ranks as layers of experts see them, made in one order by all ranks of `group`."""
    groups = Groups(group, plan.expert_mesh(group.size(), config), communicate)
    for axes in (("ep",), ("etp",), ("edp",), EXPERT_GRADIENTS, ("dp_replicate",)):
        groups.along(*axes)
    if plan.expert_nodes > 1:
        families = {EP_NODES: plan.expert_nodes, EP_INSIDE: plan.expert_parallel // plan.expert_nodes}
        for axis in families:
            groups.add(axis, mine_of(group, groups.mesh.view(families, of=("ep",)).groups(axis)))
    return groups


def _placement(
    name: str, shape: torch.Size, config: ModelConfig, plan: Plan, groups: Groups, of_experts: Groups | None
) -> Placement:
    """Where this rank's block of a parameter is: of an expert's, as layers of experts see the ranks."""
    if of_experts and isinstance(split_of(name, config.layout), SplitExperts):
        groups = of_experts
    return Placement.of(shape, spec_in_plan(name, config, plan), groups.mesh, groups.all.rank())


def spec_in_plan(name: str, config: ModelConfig, plan: Plan) -> Spec:
    """What the axes of a plan's mesh do to the parameter called `name`, on a rank that has it."""
    spec = spec_of(name, config.layout, slices_tokens=plan.sequence_parallel)
    if plan.pipeline_parallel == 1:
        return spec
    first, *_, last = plan.timetable().placement
    at_both_ends = {"pp_ends"} if name == TABLE and config.tied and first != last else ()
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
    experts: Callable[[Ops], Ops] | None = None,
    low_bits: Callable[[Ops], Ops] | None = None,
) -> Ops:
    """What the layers of a model ask for what they compute: the one list of what stands around what.

    Args:
        plan: how the work is laid out.
        region: of the tensor axes, if there are any.
        deferred: where weight gradients of a pipeline's stages wait, if it is one.
        context: how tokens look at those of other ranks, if ranks share windows.
        low_bits: around ops, such as round what they multiply, if that is wished for.
        experts: around ops, such as bring tokens to experts on other ranks, if there are any.
    """
    inside_out: list[Callable[[Ops], Ops]] = [
        # These make the products, on one rank or on several: so they stand inside.
        lambda ops: TensorParallel(region) if region else Fused() if deferred else ops,
        # Rounds what those multiply, in forward and backward.
        lambda ops: low_bits(ops) if low_bits else ops,
        # Tokens look at each other in here alone: everything else treats those that this rank has.
        lambda ops: ContextParallel(ops, context) if context else ops,
        # Experts are in here alone, likewise.
        lambda ops: experts(ops) if experts else ops,
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


def _past_scales(model: nn.Module, groups: Groups) -> PastScales:
    """What the layers of this rank remember of their numbers, which other ranks with the same layers see a part of."""
    stages = model.by_number.values() if isinstance(model, Stages) else [model]
    names = {module: name for stage in stages for name, module in stage.named_modules()}
    return PastScales(names, groups.communicator(*GRADIENTS, *TENSOR))


def _low_bits(
    linear: LinearNumbers, plan: Plan, groups: Groups, scales: PastScales | None
) -> Callable[[Ops], Ops] | None:
    """What rounds the factors of linear layers' products, around other ops."""
    if linear is LinearNumbers.SAME:
        return None
    if (copies := groups.mesh.size("tp_copy")) > 1:
        most = plan.tensor_parallel // copies
        raise BadInput(
            f"where {copies} ranks have the same heads of keys and values, each finds a part of their gradient, and "
            f"parts cannot be rounded before they are added up: take up to {most} tensor-parallel ranks, or "
            "--linear same"
        )
    tensor = groups.communicator(*TENSOR) if plan.tensor_parallel > 1 else None
    if scales:
        return partial(Delayed, scales=scales, tensor=tensor)
    return partial(LowBits, numbers=NUMBERS[linear], tensor=tensor)


def _loss(groups: Groups, config: ModelConfig) -> Loss:
    """Of logits of which each rank of the tensor axes has some."""
    return partial(vocabulary.token_loss, group=groups.communicator(*TENSOR), vocabulary=config.vocabulary)


def _experts(config: ModelConfig, plan: Plan, groups: Groups, of_experts: Groups) -> Callable[[Ops], Ops]:
    """What brings tokens to experts, around other ops."""
    dispatch, etp = None, plan.expert_tensor_parallel
    options = {"sharing": of_experts.communicator("etp") if etp > 1 else None, "chunks": plan.expert_chunks}
    if plan.expert_nodes > 1:
        pair = of_experts.communicator(EP_NODES), of_experts.communicator(EP_INSIDE)
        dispatch = TwoLevelDispatch(*pair, config.experts, **options)
    elif plan.expert_parallel * etp > 1:
        dispatch = Dispatch(of_experts.communicator("ep"), config.experts, **options)
    tensor, windows, batch = (groups.communicator(*axes) for axes in (TENSOR, ("cp", *TENSOR), (*GRADIENTS, *TENSOR)))
    ranks = TokenRanks(tensor, windows, batch, plan.sequence_parallel)
    return partial(ExpertParallel, dispatch=dispatch, ranks=ranks)


def _forms(
    model: nn.Module,
    lifted: Mapping[nn.Module, nn.Module],
    plan: Plan,
    groups: Groups,
    of_experts: Groups | None,
    make_form: Callable[..., DataParallel],
) -> list[Along]:
    """Data parallelism over all that a model keeps, and over the experts that were lifted from it, if there are any."""
    ranks = DataRanks.of(groups, plan, GRADIENTS, SHARDS)
    forms = [Along(_over_stages(model, partial(make_form, ranks=ranks)), plan.shard_axes)]
    if of_experts and (lifted or plan.pipeline_parallel > 1):  # ranks of a pipeline sum norms alike, whatever they have
        ranks = DataRanks.of(of_experts, plan, EXPERT_GRADIENTS, ("edp",))
        over_experts = _over_experts(model, lifted, partial(make_form, ranks=ranks))
        forms.append(Along(over_experts, plan.expert_shard_axes, of_experts))
    return forms


def _over_stages(model: nn.Module, make_form: Callable[[nn.Module], DataParallel]) -> DataParallel | PerStageSync:
    """A form over a model; in a pipeline, one for each of this rank's stages, and for the table that they use."""
    if not isinstance(model, Stages):
        return make_form(model)
    forms = {number: make_form(stage) for number, stage in model.by_number.items()}
    return PerStageSync(forms, make_form(model.table) if model.table else None)


def _over_experts(
    model: nn.Module, lifted: Mapping[nn.Module, nn.Module], make_form: Callable[..., DataParallel]
) -> DataParallel | PerStageSync:
    """The same over the experts of a model, or of each stage that has any."""
    if not isinstance(model, Stages):
        return make_form(lifted[model], within=model)
    return PerStageSync({n: make_form(lifted[s]) for n, s in model.by_number.items() if s in lifted})


def _pipelines(
    model: Stages,
    plan: Plan,
    groups: Groups,
    device: torch.device,
    deferred: DeferredWeightGradients,
    form: StageSync,
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


@dataclass(frozen=True)
class DataRanks:
    """Ranks over which data parallelism shares out parameters that they all hold."""

    all: Communicator  # that find a part of each gradient
    shards: Communicator  # those of them that share out what they hold
    replicas: Communicator | None  # those that hold the same shard, for hybrid sharding
    node: Communicator | None = None  # those that share a second copy

    @classmethod
    def of(cls, groups: Groups, plan: Plan, gradients: tuple[str, ...], shards: tuple[str, ...]) -> "DataRanks":
        """Along axes of a mesh. What they say to share parameters is in as few bits as the plan says."""
        replicas = groups.communicator("dp_replicate") if groups.mesh.size("dp_replicate") > 1 else None
        reduced = TILED.get(plan.quantize_gradients)
        if replicas and reduced:
            replicas = Quantised(replicas, reduced=reduced)
        node = groups.communicator(HPZ) if groups.is_beside(HPZ) else None
        return cls(groups.communicator(*gradients), _in_fewer_bits(groups, plan, shards), replicas, node)


def _in_fewer_bits(groups: Groups, plan: Plan, shards: tuple[str, ...]) -> Communicator:
    """What ranks that share parameters talk through."""
    communicator = groups.communicator(*shards)
    gathered, reduced = TILED.get(plan.quantize_weights), TILED.get(plan.quantize_gradients)
    if plan.ranks_per_node > 1:
        levels = groups.communicator(QGZ_INSIDE), groups.communicator(QGZ_NODES)
        return QuantisedOnNodes(communicator, *levels, gathered, reduced, TILED[WireFormat.INT8])
    return Quantised(communicator, gathered, reduced) if gathered or reduced else communicator


def _form(
    model: nn.Module,
    plan: Plan,
    ranks: DataRanks,
    precision: Precision,
    value: Callable[[str, torch.Size], Tensor],
    device: torch.device,
    within: nn.Module | None = None,
    rounded: Rounded | None = None,
    compressor: MakeCompressor | None = None,
) -> DataParallel:
    """The form of data parallelism, over some of this rank's parameters.

    Args:
        compressor: sums gradients, where they are not sent as they are.
        within: the model that is called, where `model` holds a few of its modules.
        rounded: how FSDP gathers what is rounded before it is computed with.
    """
    data = ranks.all
    if compressor:
        return Compressed(model, data, compressor, precision, TOGETHER[plan.data_parallel])
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
            options = {
                "replicas": ranks.replicas,
                "value": value,
                "device": device,
                "rounded": rounded,
                "node": ranks.node,
            }
            if plan.pipeline_parallel > 1:
                return FullyShardedByProgram(model, ranks.shards, precision, **options)
            units = units_of(model) if within else None  # one layer of experts is a unit, and no model in one piece
            return FullySharded(model, ranks.shards, precision, units, within=within, **options)
        case type() as form:
            return form(model, data, precision)
        case reduce:
            return Replicated(model, data, precision, reduce)

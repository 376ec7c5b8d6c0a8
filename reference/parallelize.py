"""A plan and a model in, a parallel model out: the one place where strategies meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference import on_gpus
from reference.composition.axes import Axes, channels_of, ends_of
from reference.data_parallel.form import DataParallel, UpdateForm
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat, naive
from reference.memory.precision import Precision
from reference.memory.recompute import recompute
from reference.models import GPT, GPTConfig, create, initial_value, materialise, token_loss
from reference.pipeline_parallel.folded import busiest
from reference.pipeline_parallel.form import AlongPipeline
from reference.pipeline_parallel.orders import forward_only
from reference.pipeline_parallel.passes import Channel
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.split_backward import Later
from reference.pipeline_parallel.split_region import SplitRegion
from reference.pipeline_parallel.stages import Stage, Stages, TiedTable, pieces_of
from reference.plan import SIMPLEST, Form, Order, Plan
from reference.sequence_parallel.region import SequenceRegion
from reference.sequence_parallel.ring import RingRegion
from reference.tensor_parallel import vocabulary
from reference.tensor_parallel.form import TwoAxes
from reference.tensor_parallel.gpt import compute_in, placements, split_parameters
from reference.tensor_parallel.region import Region
from reference.zero import FullySharded, Sharded, ZeroStage

__all__ = ["SIMPLEST", "Form", "Order", "Parallel", "Plan", "parallelize"]

Loss = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Parallel:
    """A model that is laid out on ranks, as one of them sees it."""

    model: nn.Module  # from tokens [B, S] to this rank's logits; in a pipeline, this rank's stages
    loss: Loss  # of these logits, as `reference.models.token_loss`; ranks that read the same windows get the same
    form: UpdateForm  # between the model and its optimizer
    data: ProcessGroup  # ranks that read different windows
    losses: ProcessGroup  # ranks whose losses add up: these, and in a pipeline those that have other stages
    pipeline: Pipeline | None = None
    inference: Callable[[torch.Size], Pipeline] | None = None  # of one micro-batch of this shape: forward alone


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
    mesh = plan.mesh(group.size(), config)
    axes = Axes.of(group, mesh)
    ends = ends_of(group, mesh, plan.schedule()) if axes.pipe and config.tied else None
    if on_gpus.is_gpu(device):
        axes.connect(device, ends)
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
    later = Later(model) if axes.pipe else None  # first: regions put their own forward in its place
    region = _region(plan, axes, later, overlap=on_gpus.is_gpu(device)) if axes.tensor else None
    for piece in model.by_number.values() if axes.pipe else [model]:
        if region:
            compute_in(piece, region)
        recompute(piece, plan.recompute)
    make_form = partial(_form, plan=plan, axes=axes, precision=precision, value=value, device=device)
    if axes.pipe:
        form = _form_of_stages(model, make_form, axes, ends)
        channels = None
        if on_gpus.is_gpu(device):
            on_gpus.require_connections(busiest(plan.schedule()))
            channels = channels_of(group, mesh, plan.schedule(), device)
        pipelines = _pipelines(model, plan, axes, device, later, form, channels)
    else:
        form, pipelines = make_form(model), (None, None)
    loss = token_loss
    if region:
        partial_sums = {name: shared for name in placed if (shared := axes.sees_part_of(placed[name], region))}
        form = TwoAxes(form, placed, axes.tensor, partial_sums)
        loss = partial(vocabulary.token_loss, group=axes.tensor, vocabulary=config.vocabulary)
    return Parallel(model, loss, form, axes.data, axes.losses, *pipelines)


def _part_of(config: GPTConfig, plan: Plan, axes: Axes) -> nn.Module:
    """The model, or this rank's stages of it."""
    if axes.pipe is None:
        return GPT(config)
    schedule = plan.schedule()
    pieces, own = pieces_of(config, schedule.stages), schedule.stages_on(axes.pipe.rank())
    table = TiedTable(config) if config.tied and {0, schedule.stages - 1} & set(own) else None
    return Stages({stage: Stage(config, pieces[stage], table) for stage in own}, table)


def _region(plan: Plan, axes: Axes, later: Later | None, overlap: bool) -> Region | SplitRegion:
    """What happens where ranks of the tensor axis begin and end to share work."""
    kind = Region
    if plan.sequence_parallel:
        kind = RingRegion if plan.async_tensor_parallel else SequenceRegion
    region = kind(axes.tensor, overlap)
    return SplitRegion(region, later) if later else region


def _form_of_stages(
    model: Stages, make_form: Callable[[nn.Module], DataParallel], axes: Axes, ends: ProcessGroup | None
) -> AlongPipeline:
    """A form for each of this rank's stages, and for the table that they use."""
    forms = {number: make_form(stage) for number, stage in model.by_number.items()}
    return AlongPipeline(forms, axes.pipe, make_form(model.table) if model.table else None, ends)


def _pipelines(
    model: Stages,
    plan: Plan,
    axes: Axes,
    device: torch.device,
    later: Later | None,
    form: AlongPipeline,
    channels: Mapping[Channel, ProcessGroup] | None,
) -> tuple[Pipeline, Callable[[torch.Size], Pipeline]]:
    """For training, and for inference: one for each shape of tokens, since all messages of a pipeline have one."""
    copies = axes.tensor if plan.scatter_gather and not plan.sequence_parallel else None
    options = {"later": later, "form": form, "channels": channels, "copies": copies}

    def pipeline(schedule: Schedule) -> Pipeline:
        return Pipeline(schedule, model.by_number, axes.pipe, device, **options)

    return pipeline(plan.schedule()), cache(lambda shape: pipeline(forward_only(plan.schedule(), m=1)))


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

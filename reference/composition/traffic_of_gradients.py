"""What a rank sends of parameters and their gradients: as a form of data parallelism does, and as specs say after it.

| form       | travels together | gradients                                 | parameters                              |
|------------|------------------|-------------------------------------------|-----------------------------------------|
| naive      | a parameter      | all-reduce once a step                    |                                         |
| flat       | all of a stage   | all-reduce once a step                    |                                         |
| DDP        | a bucket         | all-reduce once a step                    |                                         |
| ZeRO-1     | a bucket         | reduce-scatter once a step                | all-gather once a step                  |
| ZeRO-2     | a bucket         | reduce-scatter in each micro-batch        | all-gather once a step                  |
| FSDP, HSDP | a unit           | reduce-scatter in each micro-batch; HSDP: | all-gather before forward, and again    |
|            |                  | all-reduce of shards once a step          | before backward, of each micro-batch    |

In a pipeline a unit of FSDP is gathered as often as its stage becomes one of the next two, and its gradients leave when
it is freed: the schedule decides how often (`pipeline_parallel.passes.with_gathering`). Experts have a form of their
own, over the ranks that hold the same ones; so has a table that both ends of a pipeline use.

Sizes are those of modules without memory, which are cut into buckets and units as the forms themselves cut them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from reference.data_parallel.buckets import in_order_of_use
from reference.data_parallel.flat_layout import FlatLayout
from reference.data_parallel.replicated import BUCKET_BYTES
from reference.expert_parallel.lifted import lift_experts
from reference.mesh import EXPERT_GRADIENTS, GRADIENTS
from reference.models import architecture, create
from reference.models.layout import SplitExperts, split_of
from reference.pipeline_parallel.passes import Free, Gather, Reduce, Step, programmed
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.stages import Stages, TiedTable, stage_of
from reference.sharding import Placement
from reference.tensor_parallel.layout import spec_of
from reference.tensor_parallel.ops import split_parameters
from reference.zero.choice import units_of
from reference.zero.unit import make_units

from .step_shape import RanksAlong, StepShape, Traffic

SHARDS = ("dp_shard", "cp")
Uses = tuple[int, int]
"""How often a unit of FSDP is gathered in a step, and how often its gradients leave."""


@dataclass(frozen=True)
class TravelsTogether:
    """Parameters of a rank that travel together: a bucket, or a unit."""

    named: Mapping[str, nn.Parameter]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In their order."""
        return list(self.named.values())


@dataclass(frozen=True)
class PartOfModel:
    """What one form of data parallelism takes care of on a rank: a model or a stage, a tied table, or experts."""

    module: nn.Module  # without memory: this rank's blocks
    stage: int | None  # None for a table that two stages use
    is_of_experts: bool = False


def of_parameters(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """All of a step."""
    parts = parts_on(shape, rank)
    for part in parts:
        for together in cut(part, shape):
            yield from _of_form(shape, rank, part, together)
    yield from _partial_sums(shape, rank, [part for part in parts if not part.is_of_experts])


def parts_on(shape: StepShape, rank: int) -> list[PartOfModel]:
    """The model of a rank, in as many parts as there are forms of data parallelism, as `parallelize` makes them."""
    config, plan, precision = shape.config, shape.plan, shape.precision
    dtype = precision.compute if plan.shards_parameters else precision.master
    model = create(partial(_module_on, shape, rank), config, device="meta", dtype=dtype)
    named = model.named_parameters()
    split_parameters(model, {name: _placement(shape, rank, name, parameter) for name, parameter in named})
    lifted = lift_experts(model) if config.experts else {}
    stages = model.by_number if isinstance(model, Stages) else {0: model}
    table = [PartOfModel(model.table, None)] if isinstance(model, Stages) and model.table else []
    parts = [*table, *(PartOfModel(stage, number) for number, stage in stages.items())]
    return parts + [
        PartOfModel(lifted[stage], number, is_of_experts=True) for number, stage in stages.items() if stage in lifted
    ]


def _module_on(shape: StepShape, rank: int, config: object) -> nn.Module:
    """The model, or a rank's stages of it."""
    own, ends = shape.stages_on(rank), {0, shape.schedule.stages - 1}
    if shape.plan.pipeline_parallel == 1:
        return architecture(config)
    table = TiedTable(config) if config.tied and ends & set(own) else None
    return Stages({stage: stage_of(config, shape.pieces[stage], table) for stage in own}, table)


def _placement(shape: StepShape, rank: int, name: str, parameter: nn.Parameter) -> Placement:
    """Where a rank's block of a parameter is."""
    is_of_experts = isinstance(split_of(name, shape.config.layout), SplitExperts)
    mesh = shape.experts if is_of_experts else shape.mesh
    return Placement.of(parameter.shape, spec_of(name, shape.config.layout), mesh, rank)


def cut(part: PartOfModel, shape: StepShape) -> list[TravelsTogether]:
    """The buckets or units of a part."""
    named = dict(part.module.named_parameters())
    names = {parameter: name for name, parameter in named.items()}
    match shape.plan.data_parallel:
        case "fsdp" | "hsdp":
            return make_units(part.module, named, units_of(part.module), TravelsTogether)
        case "naive":
            cuts = [[parameter] for parameter in names]
        case "flat":
            cuts = [list(names)] if names else []
        case _:
            cuts = in_order_of_use(list(names), BUCKET_BYTES)
    return [TravelsTogether({names[parameter]: parameter for parameter in each}) for each in cuts]


def _of_form(shape: StepShape, rank: int, part: PartOfModel, together: TravelsTogether) -> Iterator[Traffic]:
    """What the form of data parallelism sends of one bucket or unit."""
    numel = sum(parameter.numel() for parameter in together.parameters)
    gradient, parameter = shape.precision.gradients.itemsize, shape.precision.compute.itemsize
    kind = " of experts" if part.is_of_experts else ""
    if not shape.plan.shards_parameters:
        ranks = ranks_of(shape, rank, part)
        if not shape.plan.shard_axes:
            yield ranks.all_reduce(f"gradients{kind}", numel, gradient)
            return
        every = shape.plan.data_parallel == "zero2" and part.stage is not None
        yield ranks.reduce_scatter(f"gradients{kind}", numel, gradient, shape.micro_batches if every else 1)
        yield ranks.all_gather(f"updated parameters{kind}", numel, parameter)
        return
    shards, replicas = shards_of(shape, rank, part)
    gathers, reductions = uses(shape, rank, part, together)
    yield shards.all_gather(f"parameters{kind}", numel, parameter, gathers)
    yield shards.reduce_scatter(f"gradients{kind}", numel, gradient, reductions)
    yield replicas.all_reduce(f"gradients of shards{kind}", -(-numel // shards.size), gradient)


def ranks_of(shape: StepShape, rank: int, part: PartOfModel) -> RanksAlong:
    """The ranks that each find a part of the gradients of a part of the model."""
    return shape.along_experts(rank, *EXPERT_GRADIENTS) if part.is_of_experts else shape.along(rank, *GRADIENTS)


def shards_of(shape: StepShape, rank: int, part: PartOfModel) -> tuple[RanksAlong, RanksAlong]:
    """Those of them that share out parameters, where any do, and those that hold the same shard."""
    if part.is_of_experts:
        return shape.along_experts(rank, "edp"), shape.along_experts(rank, "dp_replicate")
    return shape.along(rank, *SHARDS), shape.along(rank, "dp_replicate")


def uses(shape: StepShape, rank: int, part: PartOfModel, unit: TravelsTogether) -> Uses:
    """How often a unit of FSDP is gathered, and its gradients leave.

    Without a pipeline: before forward and before backward, twice as often if both ends of the model have the table.
    """
    if shape.plan.pipeline_parallel == 1:
        names = Counter(id(parameter) for _, parameter in part.module.named_parameters(remove_duplicate=False))
        ends = max(names[id(parameter)] for parameter in unit.parameters)  # that have a tied table
        return 2 * ends * shape.micro_batches, shape.micro_batches
    if part.stage is None:
        return 1, 1  # it stays whole until the step is over
    pipe = shape.mesh.coordinates(rank)["pp"]
    line = programmed(shape.schedule, ahead=1, shards=True).lines[pipe]
    return uses_in_program(line, part.stage, lambda kind: brings_gradient(part, unit, kind))


def uses_in_program(line: Sequence[Step], stage: int, brings: Callable[[Kind], bool]) -> Uses:
    """The same in a line of a pipeline's program.

    Gradients that are here when a stage is freed leave; in the last backward of the stage, those of all units.

    Args:
        line: of a rank.
        stage: that the unit is in.
        brings: whether an action of the stage brings a gradient of the unit.
    """
    gathers = reductions = 0
    is_here = False
    for step in line:
        match step:
            case Gather(number) if number == stage:
                gathers += 1
            case Action(kind, number) if number == stage:
                is_here |= brings(kind)
            case Reduce(action) if action.stage == stage:
                reductions, is_here = reductions + 1, False
            case Free(number) if number == stage:
                reductions, is_here = reductions + is_here, False
    return gathers, reductions


def brings_gradient(part: PartOfModel, unit: TravelsTogether, kind: Kind) -> bool:
    """Whether an action brings a gradient of a unit.

    Where backward comes in halves, weights of linear layers wait for the second; all else has its gradient in the
    first: norms, biases, routers, experts, the table of tokens.
    """
    of_modules = [module.weight for module in part.module.modules() if isinstance(module, nn.Linear)]
    waiting = {id(weight) for weight in of_modules}
    match kind:
        case Kind.FORWARD:
            return False
        case Kind.INPUT:
            return any(id(parameter) not in waiting for parameter in unit.parameters)
        case Kind.WEIGHT:
            return any(id(parameter) in waiting for parameter in unit.parameters)
    return True


def _partial_sums(shape: StepShape, rank: int, parts: Sequence[PartOfModel]) -> Iterator[Traffic]:
    """What specs say after that: sums of what ranks that hold the same have each found a part of.

    Norms under sequence parallelism, key-value heads that several ranks have, routers, a table at both ends of a
    pipeline. With ZeRO the sum is of a shard. All that the same ranks sum is one message.
    """
    found: dict[tuple[int, ...], tuple[RanksAlong, int]] = {}
    for part in parts:
        for together in cut(part, shape):
            for name, numel in kept(shape, rank, part, together).items():
                for ranks in partial_ranks(shape, rank, part, name):
                    _, before = found.get(ranks.ranks, (ranks, 0))
                    found[ranks.ranks] = ranks, before + numel
    for ranks, numel in found.values():
        yield ranks.all_reduce("parts of gradients", numel, shape.precision.master.itemsize)


def kept(shape: StepShape, rank: int, part: PartOfModel, together: TravelsTogether) -> Mapping[str, int]:
    """How many numbers a rank updates of each parameter."""
    if not shape.plan.shard_axes:
        return {name: parameter.numel() for name, parameter in together.named.items()}
    by_shards = shape.plan.shards_parameters
    ranks = shards_of(shape, rank, part)[0] if by_shards else ranks_of(shape, rank, part)
    names = list(together.named)
    pieces = FlatLayout.of(together.parameters, ranks.size).pieces(ranks.place)
    return {names[piece.index]: piece.end - piece.begin for piece in pieces}


def partial_ranks(shape: StepShape, rank: int, part: PartOfModel, name: str) -> Iterator[RanksAlong]:
    """Ranks that have each a part of a parameter's gradient after the data axes: by its spec, or at both ends."""
    spec = spec_of(name, shape.config.layout, slices_tokens=shape.plan.sequence_parallel)
    if (ranks := shape.along(rank, *(axis for axis in shape.mesh.names if axis in spec.partial))).size > 1:
        yield ranks
    if part.stage is None and (ends := shape.ends_of_table(rank)):
        yield RanksAlong(("pp",), ends, ends.index(rank))

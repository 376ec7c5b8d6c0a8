"""A step as a plan lays it out, in numbers alone: what `traffic` counts of it, and among which ranks.

    shape = StepShape(config, plan, ranks=8, windows=2, sequence=32)
    shape.along(rank, "dp_shard", "cp").all_reduce("gradients", numel, size=4)      what this rank sends in it

Collectives are counted as rings and pairs of ranks, as a trace counts the library's own (`reference.trace.native`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from reference.choices import ContextMethod, Recompute
from reference.context_parallel.layouts import Layout
from reference.dtypes import accumulator
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision
from reference.mesh import Mesh
from reference.models import ModelConfig, require_gpt
from reference.models.moe_config import MoEConfig
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.stages import pieces_of
from reference.trace import Op
from reference.zero.cost import all_reduce, one_pass

FORMS = ("naive", "flat", "ddp", "zero1", "zero2", "fsdp", "hsdp")
"""Of data parallelism, by their names in a plan."""


class PlanInNumbers(Protocol):
    """What is asked of a `reference.plan.Plan`, which knows all chapters, so that none imports it."""

    data_parallel: str  # one of `FORMS`
    micro_batches: int
    recompute: Recompute
    tensor_parallel: int
    sequence_parallel: bool
    context_parallel: int
    context_method: ContextMethod
    expert_parallel: int
    expert_tensor_parallel: int
    expert_nodes: int
    expert_chunks: int
    pipeline_parallel: int
    scatter_gather: bool

    @property
    def neighbours(self) -> int:
        """Ranks that share out heads while tokens look at each other."""

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """Along which ranks hold different parts of what is updated; () for replicas."""

    @property
    def shards_parameters(self) -> bool:
        """Whether no rank holds a whole model."""

    @property
    def split_axes(self) -> tuple[str, ...]:
        """Along which ranks hold different parts of the model, or of what updates it."""

    def require_fit(self, ranks: int, model: ModelConfig, sequence: int | None = None) -> None:
        """Refuse what does not divide."""

    def mesh(self, ranks: int, model: ModelConfig) -> Mesh:
        """How ranks are arranged."""

    def expert_mesh(self, ranks: int, model: ModelConfig) -> Mesh:
        """How layers of experts see them."""

    def layout(self, sequence: int) -> Layout:
        """Which tokens each rank along the context axis holds."""

    def timetable(self) -> Schedule:
        """What the ranks of a pipeline compute in a step."""


@dataclass(frozen=True)
class Traffic:
    """What one rank sends to the ranks along some axes, and how often in a step."""

    axes: tuple[str, ...]  # of the plan's mesh, or of that of its experts
    group: tuple[int, ...]  # the ranks that take part
    what: str  # travels
    op: Op
    once: int  # bytes that this rank sends each time
    times: int  # in a step

    @property
    def bytes(self) -> int:
        """In a step."""
        return self.times * self.once

    @property
    def axis(self) -> str:
        """The axes as words: "cp", "dp_shard x cp"."""
        return " x ".join(self.axes)


@dataclass(frozen=True)
class RanksAlong:
    """The ranks along some axes, as one of them sees them. `numel` counts the whole tensor, of `size` bytes each."""

    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    place: int  # of this rank among them

    @classmethod
    def of(cls, mesh: Mesh, rank: int, *axes: str) -> "RanksAlong":
        """Axes of one rank are left out."""
        group = mesh.group_of(rank, *axes)
        return cls(tuple(axis for axis in axes if mesh.size(axis) > 1), group, group.index(rank))

    @property
    def size(self) -> int:
        """How many."""
        return len(self.ranks)

    def all_reduce(self, what: str, numel: int, size: int, times: int = 1) -> Traffic:
        """Around a ring; where the number of ranks does not divide, it matters which of them this is."""
        return self.sends(what, Op.ALL_REDUCE, size * all_reduce(numel, self.size, self.place), times)

    def all_gather(self, what: str, numel: int, size: int, times: int = 1) -> Traffic:
        """Of a tensor that is padded to what divides."""
        return self.sends(what, Op.ALL_GATHER, size * one_pass(numel, self.size), times)

    def reduce_scatter(self, what: str, numel: int, size: int, times: int = 1) -> Traffic:
        """Likewise."""
        return self.sends(what, Op.REDUCE_SCATTER, size * one_pass(numel, self.size), times)

    def sends(self, what: str, op: Op, once: int, times: int = 1) -> Traffic:
        """So many bytes from this rank, each time."""
        return Traffic(self.axes, self.ranks, what, op, once, times)


@dataclass(frozen=True)
class StepShape:
    """A step of training of a GPT, dense or with experts.

    Args:
        config: of the model.
        plan: how it is laid out; its form of data parallelism is one of those that have a name.
        ranks: of all axes together.
        windows: b, in a micro-batch of a rank.
        sequence: s, tokens in a window.
        precision: in which dtypes.
        chosen: where experts are on several ranks: by the number of a block, which experts the tokens of each rank of
            the world go to in the whole step, [T, k] of int64, below 0 for nowhere; T is 0 where the block is not.

    Raises:
        BadInput: if the model is no GPT, the plan does not fit it, or data decide what is sent and are missing.
    """

    config: ModelConfig
    plan: PlanInNumbers
    ranks: int
    windows: int
    sequence: int
    precision: Precision = PRECISIONS["fp32"]
    chosen: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.config, MoEConfig):
            require_gpt(self.config)
        self.plan.require_fit(self.ranks, self.config, self.sequence)
        if self.plan.data_parallel not in FORMS:
            raise BadInput("what a function of one's own sends for gradients is not known: take a form that has a name")
        if self.plan.sends_fewer_bits:
            raise BadInput(
                "what a plan with fewer bits sends is a formula of compression.cost: this one has whole elements"
            )
        are_shared = self.plan.expert_parallel * self.plan.expert_tensor_parallel > 1
        missing = [layer for layer in self.config.expert_layers if layer not in self.chosen] if are_shared else []
        if missing:
            raise BadInput(f"what travels depends on where tokens go: give what block {missing[0]} has chosen")

    @cached_property
    def mesh(self) -> Mesh:
        """Of all but the experts."""
        return self.plan.mesh(self.ranks, self.config)

    @cached_property
    def experts(self) -> Mesh:
        """The same ranks as layers of experts see them."""
        return self.plan.expert_mesh(self.ranks, self.config)

    @cached_property
    def schedule(self) -> Schedule:
        """Of one stage, where there is no pipeline."""
        return self.plan.timetable()

    @cached_property
    def pieces(self) -> list[range]:
        """The blocks of each stage."""
        return pieces_of(self.config, self.schedule.stages)

    @cached_property
    def local(self) -> int:
        """Tokens of a window that a rank holds, padding included; ranks that share matrices hold the same."""
        c = self.plan.context_parallel
        return self.sequence if c == 1 else self.plan.layout(self.sequence).local

    @property
    def tokens(self) -> int:
        """Of a micro-batch on a rank."""
        return self.windows * self.local

    @property
    def micro_batches(self) -> int:
        """m."""
        return self.plan.micro_batches

    @property
    def size(self) -> int:
        """Bytes of a number of an activation."""
        return self.precision.compute.itemsize

    @property
    def sum_size(self) -> int:
        """Bytes of a number of a sum of many: a loss, a gradient of keys and values."""
        return accumulator(self.precision.compute).itemsize

    @property
    def block_forwards(self) -> int:
        """How often a block runs forward."""
        return 1 + (self.plan.recompute is Recompute.FULL)

    @property
    def attention_forwards(self) -> int:
        """How often tokens look at each other in a forward and a backward: both ways to recompute do it again."""
        return 1 + (self.plan.recompute is not Recompute.NONE)

    def along(self, rank: int, *axes: str) -> RanksAlong:
        """The ranks along axes of the mesh."""
        return RanksAlong.of(self.mesh, rank, *axes)

    def along_experts(self, rank: int, *axes: str) -> RanksAlong:
        """The ranks along axes of the experts' mesh."""
        return RanksAlong.of(self.experts, rank, *axes)

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank, by number."""
        return self.schedule.stages_on(self.mesh.coordinates(rank)["pp"])

    def has_last(self, rank: int) -> bool:
        """Whether a rank has the last stage, and so the loss."""
        return self.schedule.stages - 1 in self.stages_on(rank)

    def blocks_on(self, rank: int) -> list[int]:
        """All blocks of a rank, by number."""
        return [layer for stage in self.stages_on(rank) for layer in self.pieces[stage]]

    def mixtures_on(self, rank: int) -> list[int]:
        """Those of them that have experts."""
        return [layer for layer in self.blocks_on(rank) if self.config.experts and self.config.has_experts(layer)]

    def ends_of_table(self, rank: int) -> tuple[int, ...]:
        """The two ranks of a pipeline that have a tied table, if this is one of them; () where one has both ends."""
        pipe, placement = self.along(rank, "pp").ranks, self.schedule.placement
        ends = tuple(sorted({pipe[placement[0]], pipe[placement[-1]]}))
        return ends if len(ends) > 1 and rank in ends else ()

    def split_backwards(self, stage: int) -> int:
        """Of how many micro-batches the backward of a stage comes in halves."""
        line = self.schedule.lines[self.schedule.placement[stage]]
        return sum(action.kind is Kind.INPUT and action.stage == stage for action in line)

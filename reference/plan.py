"""How the work is laid out over ranks: what there is to choose, and what fits together."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING

from reference.choices import (
    MOMENTUM_TRAVELS,
    Compress,
    ContextLayout,
    ContextMethod,
    Offload,
    Recompute,
    WireFormat,
)
from reference.errors import BadInput
from reference.fields import listed, option, require_64_bits, require_members
from reference.mesh import TENSOR, Mesh
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.schedule import Schedule
from reference.zero_bubble import building_blocks
from reference.zero_bubble import orders as zero_bubble

if TYPE_CHECKING:
    from reference.config import TrainConfig
    from reference.context_parallel.layouts import Layout
    from reference.models import ModelConfig


class DataParallelism(StrEnum):
    """Which form of data parallelism: which rank holds what, and when it travels."""

    NAIVE = "naive"  # replicas; one all-reduce for each gradient, after backward
    FLAT = "flat"  # replicas; one all-reduce of all gradients, after backward
    DDP = "ddp"  # replicas; buckets, while backward runs
    ZERO1 = "zero1"  # optimizer state in shards
    ZERO2 = "zero2"  # gradients, too
    FSDP = "fsdp"  # parameters, too
    HSDP = "hsdp"  # as FSDP within groups of ranks, and replicas of these groups


class PipelineSchedule(StrEnum):
    """In which order the ranks of a pipeline compute."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"  # `stages_per_rank`; where p divides m, or memory is short
    INTERLEAVED_EVEN = "interleaved-even"  # likewise; where p does not divide m: shorter, and holds more
    BREADTH_FIRST = "breadth-first"  # likewise
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"  # two stages on each rank; activations of p micro-batches, as many as 1F1B
    ONE_F_ONE_B_V = "1f1b-v"  # likewise, two thirds as many
    V_HALF = "v-half"  # likewise, half as many
    V_MIN = "v-min"  # likewise, a third
    DUAL_PIPE_V = "dualpipev"  # two stages on each rank

    @cache
    def timetable(self, p: int, m: int, stages_per_rank: int) -> Schedule:
        """The actions of each of p ranks on m micro-batches; stages per rank where the schedule leaves that open."""
        make = {
            PipelineSchedule.GPIPE: orders.gpipe,
            PipelineSchedule.ONE_F_ONE_B: orders.one_f_one_b,
            PipelineSchedule.INTERLEAVED: partial(orders.interleaved, v=stages_per_rank),
            PipelineSchedule.INTERLEAVED_EVEN: partial(orders.interleaved_even, v=stages_per_rank),
            PipelineSchedule.BREADTH_FIRST: partial(orders.breadth_first, v=stages_per_rank),
            PipelineSchedule.ZB_H1: zero_bubble.zb_h1,
            PipelineSchedule.ZB_H2: zero_bubble.zb_h2,
            PipelineSchedule.ZB_V: zero_bubble.zb_v,
            PipelineSchedule.ONE_F_ONE_B_V: building_blocks.one_f_one_b_v,
            PipelineSchedule.V_HALF: building_blocks.v_half,
            PipelineSchedule.V_MIN: building_blocks.v_min,
            PipelineSchedule.DUAL_PIPE_V: zero_bubble.dual_pipe_v,
        }
        return make[self](p, m)


LOOPED = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_EVEN, PipelineSchedule.BREADTH_FIRST)
"""Those that leave open how many stages a rank has."""

REPLICATED = (DataParallelism.NAIVE, DataParallelism.FLAT, DataParallelism.DDP)
"""Those that leave every rank the whole sum of gradients."""

NOT_OF_PARTS = (*MOMENTUM_TRAVELS, Compress.DEMO, Compress.MAJORITY_VOTE)
"""What does not come to a sum: parts of it that other axes have would not add up."""

MOST_ACTIONS = 1_000_000  # of a schedule: a proof takes some 15 seconds


@dataclass(frozen=True)
class Plan:
    """How the work is laid out: it decides speed, memory and messages, and never what is learned.

    Fewer bits are the exception: what travels rounded is learned with an error.

    Raises:
        BadInput: if the numbers make no sense.
    """

    data_parallel: DataParallelism | Callable[..., None] = option(  # or a function that sums gradients, or a form
        DataParallelism.FLAT, "How ranks share a batch: {words}. Lessons 05 and 06."
    )
    micro_batches: int = option(1, "Micro-batches that each rank's part of a batch is cut into.")
    recompute: Recompute = option(Recompute.NONE, "Activations that backward computes again to save memory: {words}.")
    offload: Offload = option(Offload.NONE, "Where to keep the optimizer's state: {words}; none is beside the model.")
    offload_folder: str = option("/var/tmp", "With --offload disk: a folder on a real disk; /tmp is often memory.")
    dp_replicate: int | None = option(
        None,
        "With --data-parallel hsdp: how many copies of the model there are; 2 by default.",
        within=("data_parallel",),
    )
    quantize_weights: WireFormat = option(
        WireFormat.NONE,
        "With --data-parallel fsdp or hsdp: in which numbers parameters are gathered, {words} (qwZ of ZeRO++).",
        within=("data_parallel",),
    )
    secondary_shards: int = option(
        1,
        "With --data-parallel fsdp or hsdp: ranks of a node, which keep a second copy of the parameters in each step, "
        "from which they gather (hpZ of ZeRO++); 1 is none.",
        within=("data_parallel",),
    )
    quantize_gradients: WireFormat = option(
        WireFormat.NONE,
        "With --data-parallel fsdp or hsdp: in which numbers gradients travel to where they are summed, {words} (qgZ "
        "of ZeRO++).",
        within=("data_parallel",),
    )
    ranks_per_node: int = option(
        1,
        "With --quantize-gradients: ranks of a node, which sum gradients in int8 before they leave it; 1 is one level.",
        within=("data_parallel", "quantize_gradients"),
    )
    tensor_parallel: int = option(1, "How many ranks share each matrix, and read the same windows. Lesson 07.")
    sequence_parallel: bool = option(
        False, "With --tensor-parallel: share the tokens between matrices. Lesson 08.", within=("tensor_parallel",)
    )
    async_tensor_parallel: bool = option(
        False,
        "With --sequence-parallel: send slices of tokens while others are multiplied.",
        within=("tensor_parallel",),
    )
    context_parallel: int = option(
        1, "How many ranks share each window, and all that they hold is a part of it. Lesson 11."
    )
    context_method: ContextMethod = option(
        ContextMethod.RING,
        "With --context-parallel: how tokens look at those of other ranks, {words}.",
        within=("context_parallel",),
    )
    context_layout: ContextLayout = option(
        ContextLayout.ZIGZAG,
        "With --context-parallel: which tokens a rank holds, {words}; zigzag balances causal attention.",
        within=("context_parallel",),
    )
    context_neighbours: int | None = option(
        None,
        "With --context-method usp: how many ranks share out heads, before a ring connects them; 2 by default.",
        within=("context_parallel", "context_method"),
    )
    expert_parallel: int = option(
        1, "How many ranks share out the experts of a layer, each with some of them. Lesson 12."
    )
    expert_tensor_parallel: int = option(1, "How many ranks share each matrix of an expert.")
    expert_nodes: int = option(
        1,
        "With --expert-parallel: nodes that these ranks are on; a token travels once to each, however many of its "
        "experts are there.",
        within=("expert_parallel",),
    )
    expert_chunks: int = option(
        1,
        "With --expert-parallel: in how many parts tokens travel, so that one travels while another is computed.",
        within=("expert_parallel",),
    )
    pipeline_parallel: int = option(1, "How many ranks share the layers, as a pipeline. Lesson 09.")
    schedule: PipelineSchedule = option(
        PipelineSchedule.ONE_F_ONE_B,
        "With --pipeline-parallel: the order of its work, {words}.",
        within=("pipeline_parallel",),
    )
    stages_per_rank: int | None = option(
        None,
        "With --schedule interleaved, interleaved-even or breadth-first: how many stages a rank has; 2 by default.",
        within=("pipeline_parallel", "schedule"),
    )
    scatter_gather: bool = option(
        True, "Whether tensor-parallel ranks share out what all of them would send to the next stage: {words}."
    )

    def __post_init__(self) -> None:
        require_members(self)
        require_64_bits(self)
        if self.micro_batches < 1:
            raise BadInput(f"a step has at least 1 micro-batch, not {self.micro_batches}")
        if self.dp_replicate is not None and self.data_parallel is not DataParallelism.HSDP:
            raise BadInput(f"dp_replicate is of hsdp, not of {self.data_parallel}")
        if self.replicas < 1:
            raise BadInput(f"a model has at least 1 replica, not {self.dp_replicate}")
        self._check_bits()
        if self.tensor_parallel < 1:
            raise BadInput(f"tensor parallelism takes at least 1 rank, not {self.tensor_parallel}")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise BadInput("sequence parallelism shares tokens among tensor-parallel ranks: it takes 2 or more of them")
        if self.async_tensor_parallel and not self.sequence_parallel:
            raise BadInput("asynchronous tensor parallelism sends slices of sequences: it takes sequence parallelism")
        self._check_context()
        self._check_experts()
        if self.pipeline_parallel < 1:
            raise BadInput(f"a pipeline has 1 rank or more, not {self.pipeline_parallel}")
        if self.stages_per_rank is not None and self.schedule not in LOOPED:
            raise BadInput(f"stages per rank are of interleaved and breadth-first, not of {self.schedule}")
        if self.stages_per_rank is not None and self.stages_per_rank < 1:
            raise BadInput(f"a rank has 1 stage or more, not {self.stages_per_rank}")
        if self.pipeline_parallel == 1 and self.schedule is not PipelineSchedule.ONE_F_ONE_B:
            raise BadInput(f"{self.schedule} is a schedule of pipelines: it takes pipeline parallelism of 2 or more")

    def _check_bits(self) -> None:
        if min(self.secondary_shards, self.ranks_per_node) < 1:
            raise BadInput(f"a node has 1 rank or more, not {min(self.secondary_shards, self.ranks_per_node)}")
        if self.sends_fewer_bits and not self.shards_parameters:
            raise BadInput(
                f"quantised weights and gradients and secondary shards are of fsdp and hsdp, not of "
                f"{self.data_parallel}: take --data-parallel fsdp"
            )
        if self.ranks_per_node > 1 and self.quantize_gradients is WireFormat.NONE:
            raise BadInput(
                "ranks per node say where gradients are summed before few bits of them leave: they take "
                "--quantize-gradients"
            )

    def _check_context(self) -> None:
        if self.context_parallel < 1:
            raise BadInput(f"context parallelism takes at least 1 rank, not {self.context_parallel}")
        if self.context_parallel == 1 and (
            self.context_method is not ContextMethod.RING or self.context_layout is not ContextLayout.ZIGZAG
        ):
            words = f"{self.context_method} and {self.context_layout}"
            raise BadInput(f"{words} say how ranks share a window: they take context parallelism of 2 or more")
        if self.context_neighbours is not None and self.context_method is not ContextMethod.USP:
            raise BadInput(f"neighbours share out heads in usp, not in {self.context_method}")
        if self.neighbours < 1 or self.context_parallel % self.neighbours:
            raise BadInput(
                f"{self.context_parallel} ranks that share a window do not divide into families of {self.neighbours}"
            )

    def _check_experts(self) -> None:
        sizes = {
            "expert parallelism": self.expert_parallel,
            "tensor parallelism of experts": self.expert_tensor_parallel,
            "dispatch to experts": min(self.expert_nodes, self.expert_chunks),
        }
        for name, size in sizes.items():
            if size < 1:
                raise BadInput(f"{name} takes at least 1, not {size}")
        if self.expert_parallel % self.expert_nodes:
            raise BadInput(f"{self.expert_parallel} ranks with experts do not divide among {self.expert_nodes} nodes")

    def require_fit(self, ranks: int, model: "ModelConfig", sequence: int | None = None) -> None:
        """See whether the plan can be laid out on so many ranks.

        Args:
            ranks: of all axes together.
            model: that is to be laid out.
            sequence: tokens in a window, if they are known.

        Raises:
            BadInput: that says what does not divide.
        """
        from reference.tensor_parallel.layout import require_fit  # takes torch, which a command line does without

        p, c = self.pipeline_parallel, self.context_parallel
        if ranks % p:
            raise BadInput(f"{ranks} ranks do not divide into pipelines of {p}")
        if p > 1 and ranks % (p * self.tensor_parallel):
            axes = f"{p} stages of {self.tensor_parallel} tensor-parallel ranks"
            raise BadInput(f"{ranks} ranks do not divide into {axes}: take a multiple of {p * self.tensor_parallel}")
        if c > 1 and ranks % (p * c * self.tensor_parallel):
            axes = " x ".join(str(size) for size in (p, c, self.tensor_parallel) if size > 1)
            raise BadInput(
                f"{ranks} ranks do not divide into {axes} that share windows, layers or matrices: take a multiple of "
                f"{p * c * self.tensor_parallel}"
            )
        is_whole = self.sequence_parallel and c == 1  # slices of a window are padded to what divides
        require_fit(model, self.tensor_parallel, ranks // p // c, sequence if is_whole else None)
        if (u := self.neighbours) > 1 and model.heads // self.tensor_parallel % u:
            raise BadInput(
                f"{model.heads // self.tensor_parallel} heads of queries do not divide among {u} ranks that share them "
                "out: take a divisor, or the method ring or all-gather"
            )
        self._require_experts(model)
        if p > 1:
            self._require_schedule(model.layers)
        if self.dp_size(ranks) % self.replicas:
            raise BadInput(f"{self.dp_size(ranks)} ranks do not divide into {self.replicas} replicas of the model")
        self._require_expert_ranks(ranks)
        self._require_nodes(ranks, model)

    def _require_nodes(self, ranks: int, model: "ModelConfig") -> None:
        """See that ranks that share parameters divide into nodes."""
        shards = self.dp_size(ranks) // self.replicas * self.context_parallel
        for size in (self.secondary_shards, self.ranks_per_node):
            if shards % size:
                raise BadInput(f"{shards} ranks that share parameters do not divide into nodes of {size}")
            if size > 1 and model.experts:
                raise BadInput(
                    "experts are shared among other ranks than the rest, in nodes of another size: take secondary "
                    "shards and ranks per node of 1"
                )

    def require_compression(self, config: "TrainConfig") -> None:
        """See whether replicas can send less than their gradients.

        Raises:
            BadInput: where no ranks sum whole gradients for all of them; or where gradients of one parameter are parts
                that are summed once more.
        """
        if not config.is_compressed:
            return
        word = config.compress if config.compress is not Compress.NONE else config.optimizer
        if self.data_parallel not in REPLICATED:
            form = self.data_parallel if isinstance(self.data_parallel, DataParallelism) else "a function of one's own"
            raise BadInput(
                f"{word} gives all replicas the whole sum of their gradients, and {form} does not sum so: take "
                f"--data-parallel {listed(REPLICATED)}"
            )
        if word in NOT_OF_PARTS and (self.tensor_parallel > 1 or self.pipeline_parallel > 1 or config.model.experts):
            raise BadInput(
                f"with {word} replicas agree on more than a sum, and where ranks of a tensor axis or of a pipeline "
                "have parts of a gradient, these must add up: take data parallelism alone, of a model without experts"
            )

    def _require_experts(self, model: "ModelConfig") -> None:
        """See that a model has the experts that are to be shared out."""
        ep, etp = self.expert_parallel, self.expert_tensor_parallel
        if ep * etp > 1 and not model.experts:
            raise BadInput("this model has no experts to share out: take one that has, such as moe-demo")
        if ep > model.experts > 0:
            raise BadInput(f"{ep} ranks share out {model.experts} experts: each has one or more of them")
        if etp > 1 and model.expert_hidden % etp:
            raise BadInput(f"{model.expert_hidden} features of an expert do not divide among {etp} ranks")

    def _require_expert_ranks(self, ranks: int) -> None:
        """See that ranks that share a stage and a replica can be seen as ranks with experts."""
        here = ranks // self.pipeline_parallel // self.replicas
        if here % (wanted := self.expert_parallel * self.expert_tensor_parallel):
            raise BadInput(
                f"{here} ranks that read other tokens or share matrices do not divide into {self.expert_parallel} x "
                f"{self.expert_tensor_parallel} that share out experts: take a multiple of {wanted}"
            )

    def _require_schedule(self, layers: int) -> None:
        """See that the schedule has stages for which there are layers, and can be written down."""
        p, m, v = self.pipeline_parallel, self.micro_batches, 1
        if self.schedule in LOOPED:
            v = 2 if self.stages_per_rank is None else self.stages_per_rank
        stages = p * v if p * v > layers else self.schedule.timetable(p, 1, v).stages
        if stages > layers:
            raise BadInput(f"{layers} layers do not make {stages} stages, as {self.schedule} has on {p} ranks")
        if (actions := 2 * stages * m) > MOST_ACTIONS:
            raise BadInput(
                f"{m:,} micro-batches on {stages} stages are a schedule of {actions:,} actions, which each rank proves "
                f"before it begins: it may have {MOST_ACTIONS:,}"
            )

    def dp_size(self, ranks: int) -> int:
        """How many of so many ranks read different windows."""
        return ranks // self.tensor_parallel // self.pipeline_parallel // self.context_parallel

    def mesh(self, ranks: int, model: "ModelConfig") -> Mesh:
        """How so many ranks are arranged: those that send each other most are neighbours.

        Tensor-parallel ranks send most, and stages of a pipeline least. Of the data axes, hybrid sharding keeps those
        ranks close together that gather parameters from each other.
        """
        from reference.tensor_parallel.layout import tensor_axes

        shards = self.dp_size(ranks) // self.replicas
        data = {"dp_replicate": self.replicas, "dp_shard": shards}
        return Mesh(
            {
                "pp": self.pipeline_parallel,
                **data,
                "cp": self.context_parallel,
                **tensor_axes(model, self.tensor_parallel),
            }
        )

    def expert_mesh(self, ranks: int, model: "ModelConfig") -> Mesh:
        """The same ranks as layers of experts see them: those of a stage and a replica, folded another way.

        Along "ep" each has other experts, along "etp" other features of the same ones, and along "edp" replicas.
        """
        ep, etp = self.expert_parallel, self.expert_tensor_parallel
        mesh = self.mesh(ranks, model)
        of = ("dp_shard", "cp", *TENSOR)
        return mesh.view({"edp": mesh.size(*of) // (ep * etp), "ep": ep, "etp": etp}, of=of)

    def layout(self, sequence: int) -> "Layout":
        """Which tokens of a window of so many each rank along the context axis holds."""
        from reference.context_parallel.layouts import layout

        multiple = self.tensor_parallel if self.sequence_parallel else 1
        return layout(self.context_layout, sequence, self.context_parallel, multiple)

    def timetable(self) -> Schedule:
        """What the ranks of a pipeline compute in a step."""
        stages = 2 if self.stages_per_rank is None else self.stages_per_rank
        return self.schedule.timetable(self.pipeline_parallel, self.micro_batches, stages)

    @property
    def replicas(self) -> int:
        """How many groups of ranks hold the whole model, each among themselves."""
        if self.data_parallel is not DataParallelism.HSDP:
            return 1
        return 2 if self.dp_replicate is None else self.dp_replicate

    @property
    def neighbours(self) -> int:
        """How many ranks share out heads while tokens look at each other."""
        match self.context_method:
            case ContextMethod.ULYSSES:
                return self.context_parallel
            case ContextMethod.USP:
                return 2 if self.context_neighbours is None else self.context_neighbours
        return 1

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """The axes along which data parallelism lets ranks hold different parts; () for replicas."""
        return (
            ("dp_shard", "cp")
            if self.data_parallel
            in (DataParallelism.ZERO1, DataParallelism.ZERO2, DataParallelism.FSDP, DataParallelism.HSDP)
            else ()
        )

    @property
    def expert_shard_axes(self) -> tuple[str, ...]:
        """The same of experts, along the axes of their own view."""
        return ("edp",) if self.shard_axes else ()

    @property
    def split_axes(self) -> tuple[str, ...]:
        """All axes along which ranks hold different parts of the model, or of what updates it."""
        pipe = ("pp",) if self.pipeline_parallel > 1 else ()
        return (*pipe, *self.shard_axes, *(TENSOR if self.tensor_parallel > 1 else ()))

    @property
    def sends_fewer_bits(self) -> bool:
        """True where what a step of FSDP sends is not what its formula says: see `reference.compression.cost`."""
        quantises = {self.quantize_weights, self.quantize_gradients} != {WireFormat.NONE}
        return quantises or max(self.secondary_shards, self.ranks_per_node) > 1

    @property
    def shards_parameters(self) -> bool:
        """True where data parallelism leaves no rank a whole model."""
        return self.data_parallel in (DataParallelism.FSDP, DataParallelism.HSDP)


DEFAULT_PLAN = Plan()

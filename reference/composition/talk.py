"""What talks to whom: what each rank of a mesh says along each axis in one step, before a byte is sent.

| axis   | what travels                           | how often               | elements that a rank sends           |
|--------|----------------------------------------|-------------------------|--------------------------------------|
| tensor | activations, and their gradients       | 4 times for each layer  | 8 b s h (t-1)/t, for each layer,     |
|        |                                        | of each micro-batch     | each micro-batch                     |
| pipe   | activations one way, gradients back    | 2 times for each stage  | 2 b s h, for each micro-batch        |
|        |                                        | of each micro-batch     |                                      |
| data   | gradients of this rank's parameters    | once                    | 2 Ψ/(p t) (d-1)/d                    |

That is section 3 of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM" (PTD-P), which counts layers alone. Here the two ends count, too: embedding and head, the loss, tables that
are tied, gradients of norms with sequence parallelism. So it equals the trace of a step to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from reference.models import GPTConfig
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.stages import Stage, Stages
from reference.tensor_parallel import cost, placements
from reference.tensor_parallel.cost import Crossings
from reference.trace import Op
from reference.zero.cost import all_reduce, one_pass

from .mesh import Mesh


@dataclass(frozen=True)
class Talk:
    """What one rank says along one axis, and how often in a step."""

    axis: str
    what: str  # travels
    op: Op
    numel: int  # of the whole tensor
    ranks: int  # that take part
    place: int  # of this rank among them
    times: int  # in a step

    @property
    def elements(self) -> int:
        """That the rank sends in a step, with collectives around rings."""
        return self.times * self._once()

    def _once(self) -> int:
        match self.op:
            case Op.SEND:
                return self.numel
            case Op.ALL_REDUCE:
                return all_reduce(self.numel, self.ranks, self.place)
        return one_pass(self.numel, self.ranks)


@dataclass(frozen=True)
class Work:
    """A step of a GPT on a mesh with the axes pipe, data and tensor.

    Args:
        config: of the model.
        mesh: the ranks.
        schedule: what the ranks of a pipeline compute.
        pieces: the blocks of each stage.
        windows: b, in a micro-batch.
        sequence: s, tokens in a window.
        sequence_parallel: whether a rank has a slice of the sequence between the matrices.
    """

    config: GPTConfig
    mesh: Mesh
    schedule: Schedule
    pieces: Sequence[range]
    windows: int
    sequence: int
    sequence_parallel: bool = False

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.windows * self.sequence

    def stages_of(self, pipe: int) -> list[int]:
        """The stages of a rank of the pipeline, by number."""
        return [stage for stage, rank in enumerate(self.schedule.placement) if rank == pipe]


def of_a_step(work: Work, rank: int) -> list[Talk]:
    """What a rank of the mesh says in a step of forward, backward and summing gradients, the dearest axis first."""
    return [
        talk for talk in (*along_tensor(work, rank), *along_pipe(work, rank), *along_data(work, rank)) if talk.times
    ]


def along_tensor(work: Work, rank: int) -> list[Talk]:
    """Where tokens enter regions and leave them, for each micro-batch; once a step, what copies have found apart."""
    config, (t, place) = work.config, _on(work.mesh, rank, "tensor")
    stages = work.stages_of(work.mesh.coordinates(rank)["pipe"])
    blocks, last = sum(len(work.pieces[stage]) for stage in stages), work.schedule.stages - 1 in stages
    crossed = blocks * cost.block() + (0 in stages) * cost.EMBEDDING + last * cost.HEAD
    m, stream = work.schedule.micro_batches, work.tokens * config.width
    loss = [Talk("tensor", "numbers of the loss", Op.ALL_REDUCE, n * work.tokens, t, place, m * last) for n in (1, 2)]
    copies = max(1, t // config.kv_heads)
    heads = 2 * blocks * config.head_dim * config.width
    once = Talk("tensor", "gradients of key-value heads", Op.ALL_REDUCE, heads, copies, place % copies, copies > 1)
    found = [*_crossings(work, m * crossed, stream, t, place), *loss, once]
    if work.sequence_parallel:
        norms = (2 * blocks + last) * config.width
        found.append(Talk("tensor", "gradients of norms", Op.ALL_REDUCE, norms, t, place, 1))
    return found if t > 1 else []


def _crossings(work: Work, crossed: Crossings, stream: int, t: int, place: int) -> list[Talk]:
    what = "activations"
    if not work.sequence_parallel:
        return [Talk("tensor", what, Op.ALL_REDUCE, stream, t, place, crossed.sums)]
    return [
        Talk("tensor", what, Op.ALL_GATHER, stream, t, place, crossed.gathers),
        Talk("tensor", what, Op.REDUCE_SCATTER, stream, t, place, crossed.sums),
    ]


def along_pipe(work: Work, rank: int) -> list[Talk]:
    """From stage to stage, whatever the schedule; and between both ends, where they have the same table."""
    (p, place), (t, _) = _on(work.mesh, rank, "pipe"), _on(work.mesh, rank, "tensor")
    sends = sum(_leaves(work.schedule, action) for action in work.schedule.lines[place])
    slice_ = work.tokens * work.config.width // (t if work.sequence_parallel else 1)
    found = [Talk("pipe", "activations", Op.SEND, slice_, p, place, sends)]
    ends = [work.schedule.placement[stage] for stage in (0, -1)]
    if work.config.tied and place in ends and ends[0] != ends[1]:
        table = -(-work.config.vocabulary // t) * work.config.width
        found.append(Talk("pipe", "gradients of a tied table", Op.ALL_REDUCE, table, 2, ends.index(place), 1))
    return found


def _leaves(schedule: Schedule, action: Action) -> bool:
    """Whether what an action makes goes to another rank."""
    kind, stage, micro_batch = action
    if kind is Kind.WEIGHT:
        return False
    to = (schedule.behind if kind is Kind.FORWARD else schedule.before)(stage, micro_batch)
    return to is not None and schedule.placement[to] != schedule.placement[stage]


def along_data(work: Work, rank: int) -> list[Talk]:
    """Gradients of all parameters of this rank, in one all-reduce."""
    d, place = _on(work.mesh, rank, "data")
    return [Talk("data", "gradients of weights", Op.ALL_REDUCE, parameters_of(work, rank), d, place, d > 1)]


def parameters_of(work: Work, rank: int) -> int:
    """How many numbers a rank of the mesh holds: its blocks of the matrices of its stages."""
    at = work.mesh.coordinates(rank)
    with torch.device("meta"):
        model = Stages({stage: Stage(work.config, work.pieces[stage]) for stage in work.stages_of(at["pipe"])})
    placed = placements(model, at["tensor"], work.mesh.size("tensor"))
    return sum(prod(placement.local) for placement in placed.values())


def _on(mesh: Mesh, rank: int, axis: str) -> tuple[int, int]:
    """How many ranks an axis has, and which of them this is."""
    return mesh.size(axis), mesh.coordinates(rank)[axis]

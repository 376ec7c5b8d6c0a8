"""What talks to what: what each rank of a mesh sends along each axis in one step, before a byte is sent.

| axis   | what travels                           | how often               | elements that a rank sends           |
|--------|----------------------------------------|-------------------------|--------------------------------------|
| tensor | activations, and their gradients       | 4 times for each layer  | 8 b s h (t-1)/t, for each layer,     |
|        |                                        | of each micro-batch     | each micro-batch                     |
| pipe   | activations one way, gradients back    | 2 times for each stage  | 2 b s h, for each micro-batch;       |
|        |                                        | of each micro-batch     | with scatter/gather a t-th of it     |
| data   | gradients of this rank's parameters    | once                    | 2 Ψ/(p t) (d-1)/d                    |

That is section 3 of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM" (PTD-P), which counts layers alone. Here the two ends count, too: embedding and head, the loss, tables that
are tied, what scatter/gather (sec. 4.1) gathers again, gradients of norms with sequence parallelism. So it equals the
trace of a step to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from reference.mesh import Mesh
from reference.models import GPTConfig, require_gpt
from reference.pipeline_parallel.passes import channels
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.stages import TiedTable, stage_of
from reference.tensor_parallel import cost, placement
from reference.tensor_parallel.cost import Crossings
from reference.trace import Op
from reference.zero.cost import all_reduce, one_pass


@dataclass(frozen=True)
class Traffic:
    """What one rank sends along one axis, and how often in a step."""

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
class StepShape:
    """A step of a GPT on a mesh with the axes pipe, data and tensor.

    Args:
        config: of the model.
        mesh: the ranks.
        schedule: what the ranks of a pipeline compute.
        pieces: the blocks of each stage.
        windows: b, in a micro-batch.
        sequence: s, tokens in a window.
        sequence_parallel: whether a rank has a slice of the sequence between the matrices.
        scatter_gather: whether t ranks that have the same activation send a part of it each.

    Raises:
        BadInput: if the model is no GPT.
    """

    config: GPTConfig
    mesh: Mesh
    schedule: Schedule
    pieces: Sequence[range]
    windows: int
    sequence: int
    sequence_parallel: bool = False
    scatter_gather: bool = True

    def __post_init__(self) -> None:
        require_gpt(self.config)

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.windows * self.sequence


def traffic_per_step(shape: StepShape, rank: int) -> list[Traffic]:
    """What a rank of the mesh sends in a step of forward, backward and summing gradients, the costliest axis first."""
    return [
        one for one in (*along_tensor(shape, rank), *along_pipe(shape, rank), *along_data(shape, rank)) if one.times
    ]


def along_tensor(shape: StepShape, rank: int) -> list[Traffic]:
    """Where tokens enter regions and leave them, for each micro-batch; once a step, what copies have found apart."""
    config, (t, place) = shape.config, _on(shape.mesh, rank, "tensor")
    pipe = shape.mesh.coordinates(rank)["pipe"]
    stages = shape.schedule.stages_on(pipe)
    blocks, last = sum(len(shape.pieces[stage]) for stage in stages), shape.schedule.stages - 1 in stages
    crossed = blocks * cost.block() + (0 in stages) * cost.EMBEDDING + last * cost.HEAD
    m, stream = shape.schedule.micro_batches, shape.tokens * config.width
    found = [
        *_crossings(shape, m * crossed, stream, t, place),
        *(
            Traffic("tensor", "numbers of the loss", Op.ALL_REDUCE, n * shape.tokens, t, place, m * last)
            for n in (1, 2)
        ),
    ]
    if shape.scatter_gather and not shape.sequence_parallel:
        arrivals = sum(len(results) for channel, results in channels(shape.schedule).items() if channel.target == pipe)
        found.append(Traffic("tensor", "what other stages have sent", Op.ALL_GATHER, stream, t, place, arrivals))
    return [*found, *_once_a_step(shape, blocks, last, t, place)] if t > 1 else []


def _once_a_step(shape: StepShape, blocks: int, last: bool, t: int, place: int) -> list[Traffic]:
    """Gradients of what several ranks have, and of which each has found a part."""
    config, copies = shape.config, max(1, t // shape.config.kv_heads)
    heads, norms = blocks * config.kv_head_parameters, blocks * config.unsplit_parameters + last * config.width
    shared = [Traffic("tensor", "gradients of norms", Op.ALL_REDUCE, norms, t, place, 1)] * shape.sequence_parallel
    if copies > 1:
        what = "gradients of key-value heads"
        shared.append(Traffic("tensor", what, Op.ALL_REDUCE, heads, copies, place % copies, 1))
    return shared


def _crossings(shape: StepShape, crossed: Crossings, stream: int, t: int, place: int) -> list[Traffic]:
    what = "activations"
    if not shape.sequence_parallel:
        return [Traffic("tensor", what, Op.ALL_REDUCE, stream, t, place, crossed.sums)]
    return [
        Traffic("tensor", what, Op.ALL_GATHER, stream, t, place, crossed.gathers),
        Traffic("tensor", what, Op.REDUCE_SCATTER, stream, t, place, crossed.sums),
    ]


def along_pipe(shape: StepShape, rank: int) -> list[Traffic]:
    """From stage to stage, whatever the schedule; and between both ends, where they have the same table."""
    (p, place), (t, _) = _on(shape.mesh, rank, "pipe"), _on(shape.mesh, rank, "tensor")
    sends = sum(len(results) for channel, results in channels(shape.schedule).items() if channel.source == place)
    parts = t if shape.sequence_parallel or shape.scatter_gather else 1
    found = [Traffic("pipe", "activations", Op.SEND, shape.tokens * shape.config.width // parts, p, place, sends)]
    ends = [shape.schedule.placement[stage] for stage in (0, -1)]
    if shape.config.tied and place in ends and ends[0] != ends[1]:
        table = -(-shape.config.vocabulary // t) * shape.config.width
        found.append(Traffic("pipe", "gradients of a tied table", Op.ALL_REDUCE, table, 2, ends.index(place), 1))
    return found


def along_data(shape: StepShape, rank: int) -> list[Traffic]:
    """Gradients of all parameters of this rank: an all-reduce for each of its stages, and one for a tied table."""
    d, place = _on(shape.mesh, rank, "data")
    return [
        Traffic("data", "gradients of weights", Op.ALL_REDUCE, numel, d, place, d > 1)
        for numel in parameters_of(shape, rank)
    ]


def parameters_of(shape: StepShape, rank: int) -> list[int]:
    """How many numbers a rank of the mesh holds of each of its stages, and of a tied table."""
    config, at, t = shape.config, shape.mesh.coordinates(rank), shape.mesh.size("tensor")
    stages = shape.schedule.stages_on(at["pipe"])
    with torch.device("meta"):
        table = TiedTable(config) if config.tied else None
        parts: list[nn.Module] = [stage_of(config, shape.pieces[stage], table) for stage in stages]
    if table and {0, shape.schedule.stages - 1} & set(stages):
        parts.append(table)
    return [
        sum(prod(placement(name, p.shape, config, at["tensor"], t).local) for name, p in part.named_parameters())
        for part in parts
    ]


def _on(mesh: Mesh, rank: int, axis: str) -> tuple[int, int]:
    """How many ranks an axis has, and which of them this is."""
    return mesh.size(axis), mesh.coordinates(rank)[axis]

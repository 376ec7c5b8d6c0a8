"""What talks to what: what each rank of a plan sends along each axis in one step, before a byte is sent.

| axis           | what travels                         | how often               | elements that a rank sends       |
|----------------|--------------------------------------|-------------------------|----------------------------------|
| tp_head,       | activations, and their gradients     | 4 times for each layer  | 8 b s h (t-1)/t, for each layer, |
| tp_copy        |                                      | of each micro-batch     | each micro-batch                 |
| cp             | keys and values, or heads            | each layer, micro-batch | `context_parallel.cost`          |
| ep, etp        | a row for each choice of a token     | each layer, micro-batch | `expert_parallel.cost`, by data  |
| pp             | activations one way, gradients back  | 2 times for each stage  | 2 b s h, for each micro-batch;   |
|                |                                      | of each micro-batch     | with scatter/gather a t-th of it |
| dp_replicate,  | gradients of this rank's parameters; | once; with FSDP in each | 2 Ψ/(p t) (d-1)/d: `zero.cost`   |
| dp_shard, cp;  | with ZeRO parameters, too            | micro-batch             |                                  |
| edp of experts |                                      |                         |                                  |

That is section 3 of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM" (PTD-P), which counts layers alone. Here all else counts, too: the two ends of the model, the loss, tied
tables, what scatter/gather (sec. 4.1) gathers again, gradients of norms with sequence parallelism, routers and counts,
the norm of all gradients. So it equals the trace of a step to the byte, for any plan, from the second step on: in the
first, stages tell each other the shape of what they send.

`traffic_of_activations` and `traffic_of_gradients` have the rows, and take their formulas from each chapter's `cost`.
Collectives count as rings (`step_shape`). Where a run takes others, as `collectives.fast.dispatch` does for small
tensors between processes of one machine, all-reduces of more than two ranks send another number of bytes.
"""

from collections.abc import Iterator

from reference.mesh import GRADIENTS

from .step_shape import RanksAlong, StepShape, Traffic
from .traffic_of_activations import along_context, along_experts, along_pipe, along_tensor
from .traffic_of_gradients import SHARDS, of_parameters

FLOAT64, FLOAT32 = 8, 4  # bytes


def traffic_per_step(shape: StepShape, rank: int) -> list[Traffic]:
    """What a rank sends in a step of training: of forward, backward and sums of gradients, then of the update."""
    return [*traffic_of_model(shape, rank), *traffic_of_update(shape, rank)]


def traffic_of_model(shape: StepShape, rank: int) -> list[Traffic]:
    """Of forward, backward and what a form of data parallelism does with gradients and parameters."""
    ways = along_tensor, along_context, along_experts, along_pipe, of_parameters
    return [one for way in ways for one in way(shape, rank) if one.bytes]


def traffic_of_update(shape: StepShape, rank: int) -> list[Traffic]:
    """A few numbers: the norm of all gradients, whether they are finite, the loss, and how busy experts were."""
    return [one for one in _of_update(shape, rank) if one.bytes]


def _of_update(shape: StepShape, rank: int) -> Iterator[Traffic]:
    for ranks in ranks_of_norm(shape, rank):
        if shape.precision.scaled:
            yield ranks.all_reduce("whether gradients are finite", 1, FLOAT32)
        yield ranks.all_reduce("norm of gradients", 1, FLOAT64)
    yield shape.along(rank, "pp", *GRADIENTS).all_reduce("loss", 1, shape.sum_size)
    if shape.config.experts:
        counts = shape.config.layers * (shape.config.experts + 2)  # choices, those that were dropped, a loss
        yield shape.along(rank, *shape.mesh.names).all_reduce("load of experts", counts, FLOAT64)


def ranks_of_norm(shape: StepShape, rank: int) -> list[RanksAlong]:
    """The ranks over which the norm of all gradients is summed: one axis after another where they make a mesh."""
    plan, mesh = shape.plan, shape.mesh
    if shape.config.experts:
        axes = mesh.names  # their two views cross each other
    elif plan.pipeline_parallel * plan.tensor_parallel > 1:
        axes = [axis for axis in mesh.names if axis in plan.split_axes]
    elif not plan.shard_axes:
        return []
    else:
        return [shape.along(rank, *(SHARDS if plan.shards_parameters else GRADIENTS))]
    return [shape.along(rank, axis) for axis in axes if mesh.size(axis) > 1]

"""What the fullest rank of a layout holds, in bytes, by part.

| part        | bytes                                                                                            |
|-------------|--------------------------------------------------------------------------------------------------|
| parameters  | 2 for each, in bfloat16                                                                          |
| gradients   | 4 for each, in float32, where micro-batches add up                                               |
| optimizer   | 12 for each: the parameter in float32, and two moments of Adam                                   |
| activations | of each layer, times the micro-batches in flight there                                           |
| made again  | of one layer, while backward works on it                                                         |
| logits      | of the last stage, in float32                                                                    |
| gathered    | with FSDP: two layers' parameters and gradients                                                  |
| reserve     | what libraries take, and what lies between tensors                                               |

Of a pipeline's ranks the first has most in flight and the table of tokens, the last has the head, and where layers do
not divide the second has more of them than either: the fullest of the three counts. In a V the first rank has both
ends. Activations are those of Korthikanti et al. 2022 (arXiv:2205.05198), term by term, and of gated feed-forwards and
flash attention in the same way.
"""

from collections.abc import Mapping

import numpy as np

from reference.choices import Recompute
from reference.plan import PipelineSchedule

from . import stages
from .bubbles import in_flight
from .job import AttentionKernel, Job
from .layouts import Column, Layouts, Sharding
from .work import HALF, expert_share

PARAMETER, GRADIENT, STATE = 2, 4, 12  # bytes for each parameter
SINGLE = 4
CONTEXT = 1e9  # bytes of the driver and libraries of each process


def parameters(job: Job, layouts: Layouts, layers: Column) -> tuple[Column, Column]:
    """Numbers that a rank holds of so many layers, before data parallelism shards them: dense ones, and of experts."""
    model, t = job.model, layouts.tp
    keys = 2 * np.maximum(model.kv_heads / t, 1) * model.head_dim
    attention = model.width * (2 * model.attended / t + keys) + 2 * model.width
    dense = (2 + model.gated) * model.width * model.hidden / t
    if not model.experts:
        return layers * (attention + dense), 0.0 * layers
    share = expert_share(job)
    shared = model.shared_experts * model.expert_parameters / t + model.width * model.experts
    experts = model.experts * model.expert_parameters / (layouts.ep * layouts.etp)
    return layers * (attention + (1 - share) * dense + share * shared), layers * share * experts


def table(job: Job, layouts: Layouts) -> Column:
    """Numbers of the table of tokens, or of the head, on a rank."""
    return job.model.vocabulary * job.model.width / layouts.tp


def held_parameters(job: Job, layouts: Layouts, layers: Column) -> tuple[Column, Column]:
    """The same of a stage that has one of the two tables as well, or of a whole model, which has both unless tied."""
    dense, experts = parameters(job, layouts, layers)
    tables = np.where((layouts.pp == 1) & (not job.model.tied), 2, 1)
    return dense + tables * table(job, layouts), experts


def layer_activations(job: Job, layouts: Layouts) -> Column:
    """Bytes that one layer keeps of one micro-batch."""
    if layouts.recompute is Recompute.FULL:
        return HALF * layouts.tokens(job) * job.model.width / _slices(layouts)
    return _kept(job, layouts, layouts.recompute)


def _slices(layouts: Layouts) -> Column:
    return layouts.tp if layouts.sequence_parallel else 1.0


def _kept(job: Job, layouts: Layouts, recompute: Recompute) -> Column:
    model, t, tokens = job.model, layouts.tp, layouts.tokens(job)
    written = job.attention is AttentionKernel.WRITTEN
    between = tokens * model.width * (4 * HALF + 2 * written) / _slices(layouts)  # two norms' inputs and outputs, masks
    keys = np.maximum(model.kv_heads / t, 1) * model.head_dim
    inside = tokens * HALF * (2 * model.attended / t + 2 * keys)  # queries, keys, values, what attention makes
    if written and recompute is Recompute.NONE:
        inside = inside + 5 * tokens * job.sequence * model.heads / t
    return between + inside + _fed(job, layouts)


def _fed(job: Job, layouts: Layouts) -> Column:
    """Inside feed-forwards: up, gate, and their product; rows of experts, too."""
    model, tokens = job.model, layouts.tokens(job)
    dense = tokens * HALF * (2 + model.gated) * model.hidden / layouts.tp
    if not model.experts:
        return dense
    share = expert_share(job)
    rows = tokens / layouts.tp * layouts.etp * model.top_k
    routed = rows * HALF * (3 * model.expert_hidden / layouts.etp + 2 * model.width)
    shared = tokens * HALF * 3 * model.shared_experts * model.expert_hidden / layouts.tp
    return (1 - share) * dense + share * (routed + shared)


def parts(job: Job, layouts: Layouts) -> Mapping[str, Column]:
    """Bytes of the fullest rank, by part."""
    m, held = layouts.micro_batches(job), stages.held(job, layouts)
    most, in_v = in_flight(layouts, m), layouts.schedule in EVEN
    ends = held.layers - (1 + in_v) * held.relief
    first = _of_stage(job, layouts, ends, most, has_table=True, has_head=(layouts.pp == 1) | in_v)
    second = _of_stage(job, layouts, held.layers, np.minimum(m, np.maximum(most - _less(layouts), 1)))
    bottom = held.layers - (1 - in_v) * held.relief
    last = _of_stage(job, layouts, bottom, np.minimum(m, _at_the_end(layouts)), has_head=not in_v)
    totals = [sum(each.values()) for each in (first, second, last)]
    fullest = np.argmax([totals[0], np.where(layouts.pp > 2, totals[1], 0), totals[2]], axis=0)
    return {name: np.choose(fullest, [first[name], second[name], last[name]]) for name in first}


def _less(layouts: Layouts) -> Column:
    """How many micro-batches fewer the second rank has in flight than the first."""
    looped = layouts.schedule in (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_EVEN)
    if layouts.schedule in (PipelineSchedule.GPIPE, PipelineSchedule.BREADTH_FIRST, *EVEN):
        return 0.0 * layouts.pp
    return 2 / layouts.chunks if looped else 1.0 + 0.0 * layouts.pp


EVEN = (
    PipelineSchedule.ZB_V,
    PipelineSchedule.ONE_F_ONE_B_V,
    PipelineSchedule.V_HALF,
    PipelineSchedule.V_MIN,
    PipelineSchedule.DUAL_PIPE_V,
)
"""Schedules whose ranks all hold about as much."""


def _at_the_end(layouts: Layouts) -> Column:
    """Micro-batches in flight on the last rank."""
    p, v = layouts.pp, layouts.chunks
    match layouts.schedule:
        case PipelineSchedule.GPIPE | PipelineSchedule.BREADTH_FIRST:
            return np.inf + 0.0 * p
        case PipelineSchedule.INTERLEAVED | PipelineSchedule.INTERLEAVED_EVEN:
            return (p * (v - 1) + 1) / v
        case PipelineSchedule.ZB_H1 | PipelineSchedule.ZB_H2:
            return in_flight(layouts, np.inf + 0.0 * p)
        case one if one in EVEN:
            return in_flight(layouts, np.inf + 0.0 * p)
    return 1.0 + 0.0 * p


def _of_stage(
    job: Job, layouts: Layouts, layers: Column, flying: Column, has_table: bool = False, has_head: Column = False
) -> dict[str, Column]:
    """Bytes of one rank of a pipeline, by part."""
    dense, experts = parameters(job, layouts, layers)
    tables = np.where(has_head & (has_table * job.model.tied), 1.0, 1.0 * has_table + has_head)
    dense = dense + tables * table(job, layouts)
    replicas = layouts.dp * layouts.cp
    holders = layouts.tp * replicas / (layouts.ep * layouts.etp)
    stored = {
        "parameters": (PARAMETER, layouts.sharding is Sharding.FSDP),
        "gradients": (GRADIENT, layouts.sharding in (Sharding.FSDP, Sharding.ZERO2)),
        "optimizer": (STATE, layouts.sharding is not Sharding.NONE),
    }
    found = {
        name: size * (dense / replicas + experts / holders if is_shared else dense + experts)
        for name, (size, is_shared) in stored.items()
    }
    unit = sum(parameters(job, layouts, 1.0)) * (layouts.sharding is Sharding.FSDP)
    logits = layouts.tokens(job) * job.model.vocabulary / layouts.tp * (HALF + SINGLE)
    return found | {
        "activations": layers * flying * layer_activations(job, layouts),
        "made again": made_again(job, layouts),
        "logits": logits * has_head,
        "gathered": (2 * PARAMETER + GRADIENT) * unit,
        "reserve": CONTEXT + 0.0 * layers,
    }


def made_again(job: Job, layouts: Layouts) -> Column:
    """Bytes of one layer while backward works on it: all of it, or the pairs of tokens that selection leaves out."""
    if layouts.recompute is Recompute.NONE:
        return 0.0 * layouts.pp
    whole = _kept(job, layouts, Recompute.NONE)
    return whole if layouts.recompute is Recompute.FULL else whole - layer_activations(job, layouts)

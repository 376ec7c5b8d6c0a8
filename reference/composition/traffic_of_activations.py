"""What a rank sends of activations and their gradients, in each micro-batch: along the tensor, context, pipe and
expert axes. Each chapter's `cost` says how much; here is how often, and among which ranks.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from torch import Tensor

from reference.choices import ContextMethod
from reference.context_parallel.cost import AttentionShape, sent_by_group
from reference.expert_parallel import cost as experts_cost
from reference.expert_parallel.cost import INTEGER, Routes
from reference.mesh import GRADIENTS, TENSOR
from reference.models.moe_config import Balance
from reference.pipeline_parallel.passes import channels
from reference.tensor_parallel import cost
from reference.tensor_parallel.cost import Crossings
from reference.trace import Op

from .step_shape import RanksAlong, StepShape, Traffic

WINDOWS = ("cp", *TENSOR)  # ranks that have tokens of the same windows
BATCH = (*GRADIENTS, *TENSOR)  # ranks that have other tokens of a micro-batch


def along_tensor(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """Where tokens enter regions and leave them, the loss, and what joins parts that other stages have sent."""
    ranks, m, stream = shape.along(rank, *TENSOR), shape.micro_batches, shape.tokens * shape.config.width
    if ranks.size == 1:
        return
    crossed = crossings(shape, rank)
    if shape.plan.sequence_parallel:
        yield ranks.all_gather("activations", stream, shape.size, crossed.gathers)
        yield ranks.reduce_scatter("activations", stream, shape.size, crossed.sums)
    else:
        yield ranks.all_reduce("activations", stream, shape.size, crossed.sums)
    for numbers in (1, 2):
        yield ranks.all_reduce("numbers of the loss", numbers * shape.tokens, shape.sum_size, m * shape.has_last(rank))
    if shape.plan.sequence_parallel:
        return
    if shape.plan.scatter_gather:
        yield ranks.all_gather("what other stages have sent", stream, shape.size, _messages(shape, rank, end=1))
    routed = ranks.size * routed_tokens(shape) * shape.windows * shape.config.width
    passes = m * len(shape.mixtures_on(rank)) * (shape.block_forwards + 1)
    yield ranks.all_gather("tokens that each rank has routed", routed, shape.size, passes)


def crossings(shape: StepShape, rank: int) -> Crossings:
    """How often tokens enter regions on a rank and leave them, in a step."""
    found, m, recompute = Crossings(), shape.micro_batches, shape.plan.recompute
    for stage in shape.stages_on(rank):
        split, regions = shape.split_backwards(stage), sum(_regions(shape, layer) for layer in shape.pieces[stage])
        found += (m - split) * cost.block(recompute, regions) + split * cost.block(recompute, regions, halves=True)
        found += m * ((stage == 0) * cost.EMBEDDING)
    return found + m * (shape.has_last(rank) * cost.HEAD)


def _regions(shape: StepShape, layer: int) -> int:
    """Of a block: attention, and a feed-forward if it has one that all tokens meet."""
    config = shape.config
    return 1 + (not config.experts or not config.has_experts(layer) or config.shared_experts > 0)


def routed_tokens(shape: StepShape) -> int:
    """Tokens of each window that a rank routes, of which ranks that share matrices have others each; at most."""
    return ceil(shape.local / shape.plan.tensor_parallel)


def along_context(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """While tokens look at each other, in each block and micro-batch."""
    plan, config = shape.plan, shape.config
    if plan.context_parallel == 1:
        return
    t, head_groups = plan.tensor_parallel, shape.mesh.size("tp_head")
    sizes = config.heads // t, config.kv_heads // head_groups, shape.local, config.head_dim
    attention = AttentionShape(shape.windows, *sizes, plan.context_parallel, plan.neighbours)
    times = shape.micro_batches * len(shape.blocks_on(rank))
    ops = Op.ALL_TO_ALL, Op.ALL_GATHER if plan.context_method is ContextMethod.ALL_GATHER else Op.SEND
    groups = zip(ops, context_groups(shape, rank), sent_by_group(plan.context_method, attention), strict=True)
    for op, ranks, sent in groups:
        again = (shape.attention_forwards - 1) * sent.forward * shape.size
        yield ranks.sends("queries, keys and values", op, sent.bytes(shape.size, shape.sum_size) + again, times)


def context_groups(shape: StepShape, rank: int) -> tuple[RanksAlong, RanksAlong]:
    """Ranks that share out heads, and those that bring keys and values to queries: for USP two views of "cp"."""
    if shape.plan.context_method is not ContextMethod.USP:
        return (shape.along(rank, "cp"),) * 2
    u = shape.plan.neighbours
    families = shape.mesh.view({"cp_ring": shape.plan.context_parallel // u, "cp_heads": u}, of=("cp",))
    return RanksAlong.of(families, rank, "cp_heads"), RanksAlong.of(families, rank, "cp_ring")


def along_pipe(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """From stage to stage, whatever the schedule: activations one way, gradients back."""
    plan = shape.plan
    parts = plan.tensor_parallel if plan.sequence_parallel or plan.scatter_gather else 1
    message = shape.size * shape.tokens * shape.config.width // parts
    yield shape.along(rank, "pp").sends("activations", Op.SEND, message, _messages(shape, rank, end=0))


def _messages(shape: StepShape, rank: int, end: int) -> int:
    """How many a rank sends to other stages, or, as the other `end`, receives."""
    here = shape.mesh.coordinates(rank)["pp"]
    return sum(len(results) for channel, results in channels(shape.schedule).items() if channel[end] == here)


def along_experts(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """What routers must know of others' tokens, and rows that go to their experts and come back."""
    for layer in shape.mixtures_on(rank):
        yield from _decisions(shape, rank)
        yield from _rows(shape, rank, layer)


def _decisions(shape: StepShape, rank: int) -> Iterator[Traffic]:
    """Once for each micro-batch, since a decision stands when a block is computed again: whole numbers."""
    config, m, s = shape.config, shape.micro_batches, routed_tokens(shape)
    windows = shape.along(rank, *WINDOWS)
    if config.capacity:
        of_token = 1 + shape.windows * config.top_k  # its position, and its experts in each window
        yield windows.all_gather("numbers of tokens", windows.size, INTEGER, m)
        yield windows.all_gather("choices of whole windows", windows.size * s * of_token, INTEGER, m)
    match config.balance:
        case Balance.SWITCH | Balance.GSHARD:
            yield shape.along(rank, *BATCH).all_reduce("counts of choices", config.experts, INTEGER, m)
        case Balance.SEQUENCE:
            yield windows.all_reduce("counts of choices", shape.windows * config.experts, INTEGER, m)


def _rows(shape: StepShape, rank: int, layer: int) -> Iterator[Traffic]:
    """Of one layer in a step: all micro-batches together, since a row is a row in whichever of them."""
    plan, m = shape.plan, shape.micro_batches
    numbers = {"width": shape.config.width, "size": shape.size, "forwards": shape.block_forwards}
    ep, etp = shape.along_experts(rank, "ep"), shape.along_experts(rank, "etp")
    chosen, chunks = shape.chosen.get(layer, ()), plan.expert_chunks * m
    if ep.size * etp.size == 1:
        return
    routes = routes_of(chosen, ep.ranks, shape.config.experts, plan.expert_nodes)
    inside = ep.size // plan.expert_nodes
    node, place = divmod(ep.place, inside)
    if plan.expert_nodes > 1:
        families = shape.experts.view({"ep_nodes": plan.expert_nodes, "ep_inside": inside}, of=("ep",))
        crossed = experts_cost.sent_across_by_rank(routes, chunks=m, **numbers)[ep.place]
        yield RanksAlong.of(families, rank, "ep_nodes").sends("copies of tokens", Op.ALL_TO_ALL, crossed)
        routes, ep = experts_cost.inside(routes, node), RanksAlong.of(families, rank, "ep_inside")
    yield ep.sends("rows of tokens", Op.ALL_TO_ALL, experts_cost.sent(routes, chunks=chunks, **numbers)[place])
    here = [
        int(routes_of(chosen, other.ranks, shape.config.experts).rows().sum(0)[other.place])
        for other in (shape.along_experts(member, "ep") for member in etp.ranks)
    ]
    shared = experts_cost.sent_between_shares(here, inside * routes.here, chunks=chunks, **numbers)
    yield etp.sends("rows for shares of experts", Op.ALL_TO_ALL, shared[etp.place])


def routes_of(chosen: Sequence[Tensor], ranks: Sequence[int], experts: int, nodes: int = 1) -> Routes:
    """Which experts the tokens of some ranks go to, of those of all."""
    return Routes(tuple(chosen[rank] for rank in ranks), experts, nodes)

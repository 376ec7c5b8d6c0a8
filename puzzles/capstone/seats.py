"""The table of seats: which puzzle takes which place in the engine, and the adapter that makes them fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import layers, steps
from .engines import MACHINES
from .said import UNEVEN, collective

ALL = tuple(MACHINES)
TENSOR = ("tensor", "sequence")


@dataclass(frozen=True)
class Seat:
    """A place in the engine.

    Attributes:
        name: of the place, short.
        part: of the engine, where a picture shows it.
        puzzles: that can take it, best first: the first that is solved does.
        place: where it is, in words.
        engines: by name, those that have it.
        take: the adapter: (function, parts) -> None.
    """

    name: str
    part: str
    puzzles: tuple[str, ...]
    place: str
    engines: tuple[str, ...]
    take: Callable[[Callable[..., Any], Any], None]


def _seat(name: str, part: str, puzzles: str, place: str, engines: tuple[str, ...], take: Any) -> Seat:
    chapter, _, names = puzzles.partition(".")
    return Seat(name, part, tuple(f"{chapter}.{each}" for each in names.split()), place, engines, take)


SAID, READ, LAYERS, ATTENDED, EXPERTS, LOSS, SUMS, UPDATE, ORDER, KEPT = (
    "messages", "batches", "matrices", "attention", "experts", "loss", "sums", "update", "order", "state",
)  # fmt: skip
PARTS = (READ, ORDER, LAYERS, ATTENDED, EXPERTS, LOSS, SUMS, UPDATE, KEPT, SAID)

SEATS = (
    _seat(
        "all-reduce", SAID,
        "collectives.ring_all_reduce halving_doubling recursive_doubling wrong_ring naive_all_reduce",
        "`Communicator.all_reduce`: sums of gradients, of parts of a layer, of flags", ALL, collective("all_reduce"),
    ),
    _seat(
        "all-gather", SAID, "collectives.ring_all_gather",
        "`Communicator.all_gather`: updated shards, slices of tokens", ALL, collective("all_gather"),
    ),
    _seat(
        "reduce-scatter", SAID, "collectives.ring_reduce_scatter",
        "`Communicator.reduce_scatter`: gradients to the rank that updates them", ALL, collective("reduce_scatter"),
    ),
    _seat(
        "uneven all-to-all", SAID, "collectives.uneven_all_to_all",
        "`Communicator.all_to_all_uneven`: rows of tokens to experts, in block 1", ("experts",),
        collective(UNEVEN),
    ),
    _seat(
        "groups", SAID, "composition.groups_along", "`Mesh.groups`: who talks to whom", ("tensor", "context"),
        steps.seated("groups"),
    ),
    _seat(
        "coordinates", SAID, "composition.coordinates_of_a_rank", "`Mesh.coordinates`: where a rank stands",
        ("tensor", "context"), steps.seated("coordinates"),
    ),
    _seat("rows of a batch", READ, "data_parallel.shard_batch", "`Batches`, of replicas", ("data",),
          steps.dealt(steps.by_rows)),
    _seat("an epoch", READ, "data_parallel.deal_an_epoch", "`Batches`, of ZeRO and of pipelines",
          ("shards", "pipeline", "zero-bubble"), steps.dealt(steps.by_places)),
    _seat("samples of a step", READ, "resilience.resume_data_order", "`Batches`, of ranks that share matrices",
          TENSOR, steps.dealt(steps.by_samples)),
    _seat("windows of a rank", READ, "resilience.elastic_batch", "`Batches`, of windows in parts and of experts",
          ("context", "mixture", "experts"), steps.dealt(steps.by_size)),
    _seat("1F1B", ORDER, "pipeline_parallel.one_f_one_b_order gpipe_order", "`Plan.timetable` of a pipeline",
          ("pipeline",), steps.ordered()),
    _seat("interleaved order", ORDER, "pipeline_parallel.interleaved_order",
          "`Plan.timetable` with two stages on a rank", ("interleaved",), steps.ordered("v")),
    _seat("zero-bubble order", ORDER, "zero_bubble.zb_h1_order", "`Plan.timetable` with backward in halves",
          ("zero-bubble",), steps.ordered()),
    _seat("backward in halves", LAYERS, "zero_bubble.split_linear_backward",
          "linear layers of stages whose weight gradients wait", ("zero-bubble",),
          lambda function, parts: [layers.around(kind, layers.LaterWeights)(function, parts)
                                   for kind in (layers.ATTENTION, layers.FEED_FORWARD)]),
    _seat("columns", LAYERS, "tensor_parallel.column_linear", "`Ops.column_linear` of attention", ("tensor",),
          layers.around(layers.ATTENTION, layers.Columns)),
    _seat("rows", LAYERS, "tensor_parallel.row_linear", "`Ops.row_linear` of attention", ("tensor",),
          layers.around(layers.ATTENTION, layers.Rows)),
    _seat("f and g", LAYERS, "tensor_parallel.which_operator", "both ends of a feed-forward in halves", ("tensor",),
          layers.around(layers.FEED_FORWARD, layers.Ends)),
    _seat("gather and scatter", LAYERS, "sequence_parallel.scatter_gather",
          "both ends of attention, where tokens are in slices outside", ("sequence",),
          layers.around(layers.ATTENTION, layers.Ends)),
    _seat("slices that are kept", LAYERS, "sequence_parallel.save_the_shard",
          "`Ops.column_linear` of a feed-forward, where tokens are in slices outside", ("sequence",),
          layers.around(layers.FEED_FORWARD, layers.KeptSlices)),
    _seat("embedding", LAYERS, "tensor_parallel.vocabulary_embedding", "`Ops.embedding`, a table in halves",
          ("tensor",), layers.around(layers.EMBEDDING, layers.Table)),
    _seat("recomputation", LAYERS, "memory.recompute_block", "`Ops.block`: every block of ZeRO's model", ("shards",),
          layers.around(layers.BLOCK, layers.Recomputed)),
    _seat("ring, forward", ATTENDED, "context_parallel.ring_forward", "attention of block 0", ("context",),
          layers.between(layers.RingForward, 0)),
    _seat("ring, backward", ATTENDED, "context_parallel.ring_backward", "attention of block 0, backward",
          ("context",), layers.between(layers.RingBackward, 0)),
    _seat("gathered keys", ATTENDED, "context_parallel.gather_keys", "attention of block 1", ("context",),
          layers.between(layers.gathered, 1)),
    _seat("heads for tokens", ATTENDED, "context_parallel.ulysses", "attention of block 2", ("context",),
          layers.between(layers.by_heads, 2)),
    _seat("merged blocks", ATTENDED, "context_parallel.merge_blocks", "attention of block 3, a ring", ("context",),
          layers.between(layers.Merged, 3)),
    _seat("router", EXPERTS, "expert_parallel.route_top_k", "`MixtureOfExperts.choose` and `weigh`",
          ("mixture", "experts"), layers.choice),
    _seat("balance", EXPERTS, "expert_parallel.auxiliary_loss", "`MixtureOfExperts.balance_loss`", ("mixture",),
          layers.balance),
    _seat("order of experts", EXPERTS, "expert_parallel.permute_and_come_back",
          "`Ops.start_experts` where all experts are here", ("mixture",),
          layers.around(layers.MixtureOfExperts, layers.AtHome)),
    _seat("counts", EXPERTS, "expert_parallel.counts_first", "`Ops.start_experts` of block 0: how many rows come",
          ("experts",), layers.route("counts_first")),
    _seat("dispatch", EXPERTS, "expert_parallel.dispatch", "`Ops.start_experts` of block 0: tokens to other ranks",
          ("experts",), layers.route("dispatch")),
    _seat("combine", EXPERTS, "expert_parallel.combine", "`Ops.start_experts` of block 0: the way back", ("experts",),
          layers.route("combine")),
    _seat("loss of tokens", LOSS, "data_parallel.token_weighted_loss", "`Training.loss` of replicas", ("data",),
          steps.weighted),
    _seat("loss in chunks", LOSS, "memory.chunked_loss", "head and `Training.loss` of ZeRO", ("shards",),
          steps.chunked),
    _seat("loss of a vocabulary in halves", LOSS, "tensor_parallel.vocabulary_cross_entropy",
          "`Training.loss` of ranks that share matrices", TENSOR, steps.vocabulary),
    _seat("weights alike", SUMS, "data_parallel.start_alike", "before the first step of replicas", ("data",),
          steps.alike),
    _seat("buckets", SUMS, "data_parallel.overlapped_buckets gradient_hooks", "the form of data parallelism",
          ("data",), steps.hooks),
    _seat("one flat sum", SUMS, "data_parallel.flat_bucket naive_ddp",
          "`Plan.data_parallel`: what sums gradients of replicas", ("tensor", "mixture"), steps.sums),
    _seat("clipping", UPDATE, "zero.clip_by_norm", "`updates.EveryStep` of ZeRO", ("shards",), steps.clipping),
    _seat("norm", UPDATE, "composition.norm_over_all_axes", "`updates.EveryStep` over all axes",
          ("tensor", "pipeline", "experts"), steps.norms),
    _seat("copies", KEPT, "ranks.ring_shift", "after a step: each rank's state to its neighbour's memory", ("shards",),
          steps.tool("copy")),
    _seat("take over", KEPT, "resilience.neighbours_copy", "a new rank in the place of a dead one", ("shards",),
          steps.tool("take over")),
    _seat("reshard", KEPT, "resilience.reshard_4_to_3", "what four ranks have saved, loaded by two", ("shards",),
          steps.tool("reshard")),
    _seat("Adam", UPDATE, "memory.offloaded_adam", "the optimizer of ZeRO", ("shards",), steps.adam),
)  # fmt: skip

PUZZLES = tuple(dict.fromkeys(name for seat in SEATS for name in seat.puzzles))
"""All that can take a seat."""
KNOWN = (*PUZZLES, "collectives.hierarchical_all_reduce")
"""These, and what else takes part in a challenge."""


def filled(functions: Any) -> dict[str, str]:
    """For each seat that is taken, by name, the puzzle that takes it."""
    taken = {seat.name: next((name for name in seat.puzzles if name in functions), None) for seat in SEATS}
    return {name: puzzle for name, puzzle in taken.items() if puzzle}

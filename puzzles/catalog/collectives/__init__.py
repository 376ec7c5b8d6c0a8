"""Puzzles of the chapter `collectives`: every collective from send and receive."""

ORDER = (
    "naive_all_reduce",
    "broadcast_naive",
    "broadcast_tree",
    "reduce_tree",
    "broadcast_chain",
    "scatter",
    "gather",
    "ring_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "wrong_ring",
    "recursive_doubling",
    "halving_doubling",
    "pairwise_all_to_all",
    "uneven_all_to_all",
    "barrier",
    "differentiable_all_gather",
    "hierarchical_all_reduce",
)

"""Puzzles of the chapter `zero`: replicas that share."""

ORDER = (
    "pieces",
    "own_a_slice",
    "scatter_gradients",
    "gather_just_in_time",
    "weight_sharded",
    "free_it",
    "prefetch",
    "hybrid_shard",
    "clip_by_norm",
    "load_elsewhere",
    "whole_matrix",
    "deal_matrices",
    "communication_volume",
)

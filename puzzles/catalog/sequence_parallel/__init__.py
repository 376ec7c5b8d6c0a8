"""Puzzles of the chapter `sequence_parallel`: tokens in slices wherever tensor parallelism has all of them."""

ORDER = (
    "scatter_gather",
    "norm_on_a_slice",
    "embed_a_slice",
    "feed_forward",
    "missing_norm_gradient",
    "save_the_shard",
    "activation_bytes",
)

"""Puzzles of the chapter `decentralized`: training far apart and out of step."""

ORDER = (
    "pair_gossip",
    "mixing_rate",
    "parameter_server",
    "staleness",
    "bounded_staleness",
    "fedavg_by_examples",
    "batch_norm_buffers",
    "masks_that_cancel",
    "trimmed_mean",
    "merge_branches",
)

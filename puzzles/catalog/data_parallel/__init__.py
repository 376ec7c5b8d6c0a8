"""Puzzles of the chapter `data_parallel`: replicas that agree."""

ORDER = (
    "shard_batch",
    "deal_an_epoch",
    "start_alike",
    "naive_ddp",
    "flat_bucket",
    "gradient_hooks",
    "overlapped_buckets",
    "accumulate_without_sync",
    "token_weighted_loss",
    "uneven_inputs",
    "distributed_accuracy",
    "synchronised_batch_norm",
    "drifted_replica",
)

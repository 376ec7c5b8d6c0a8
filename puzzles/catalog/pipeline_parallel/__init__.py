"""Puzzles of the chapter `pipeline_parallel`: ranks that have the layers one after the other."""

ORDER = (
    "balanced_stages",
    "bubble_fraction",
    "two_stages",
    "clock_cycles",
    "gpipe_order",
    "one_f_one_b_order",
    "peak_activations",
    "exchange_between_stages",
    "where_to_reduce",
    "interleaved_order",
    "micro_batch_size",
    "tied_ends",
    "stalled_stage",
    "pipeline_and_fsdp",
)

"""Puzzles of the chapter `context_parallel`: ranks that share out the tokens of a long sequence."""

ORDER = (
    "merge_blocks",
    "gather_keys",
    "ulysses",
    "copied_heads",
    "shift_then_cut",
    "documents_by_work",
    "mean_of_means",
    "scan_of_states",
    "attention_in_blocks",
    "looks_healthy",
    "ring_forward",
    "ring_backward",
    "what_to_compute",
    "zigzag_positions",
    "stripe",
    "best_layout",
)

"""Puzzles of the chapter `context_parallel`: ranks that share out the tokens of a long sequence."""

ORDER = (
    "merge_blocks",
    "attention_in_blocks",
    "ring_forward",
    "ring_backward",
    "what_to_compute",
    "zigzag_positions",
    "stripe",
    "best_layout",
    "gather_keys",
    "ulysses",
    "copied_heads",
    "shift_then_cut",
    "mean_of_means",
    "documents_by_work",
    "scan_of_states",
    "looks_healthy",
)

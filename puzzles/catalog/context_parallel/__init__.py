"""Puzzles of the chapter `context_parallel`: ranks that share out the tokens of a long sequence."""

ORDER = (
    "merge_blocks",
    "gather_keys",
    "ulysses",
)

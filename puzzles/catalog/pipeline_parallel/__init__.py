"""Puzzles of the chapter `pipeline_parallel`: ranks that have the layers one behind the other."""

ORDER = (
    "balanced_stages",
    "gpipe_order",
)

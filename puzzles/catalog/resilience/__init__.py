"""Puzzles of the chapter `resilience`: what goes wrong, and training that continues."""

ORDER = (
    "neighbours_copy",
    "which_placement_survives",
    "best_interval",
)

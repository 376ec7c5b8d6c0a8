"""Puzzles of the chapter `frameworks`: what they call it, how they are told, and what they say on the wire."""

ORDER = (
    "launchers_variables",
    "which_stage",
    "deepspeed_to_fsdp2",
    "checkpoint_into_theirs",
)

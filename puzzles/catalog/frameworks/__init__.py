"""Puzzles of the chapter `frameworks`: what they call it, how they are told, and what they say on the wire."""

ORDER = (
    "launchers_variables",
    "mean_or_sum",
    "which_stage",
    "extra_all_reduce",
    "deepspeed_to_fsdp2",
    "plan_to_megatron",
    "megatron_to_torch",
    "read_a_hang",
    "checkpoint_into_theirs",
)

"""Puzzles of the chapter `planning`: what a plan costs before it is paid for."""

ORDER = (
    "compute_optimal",
    "flops_of_a_step",
    "mfu_or_hfu",
    "time_of_a_product",
    "fullest_rank",
    "does_it_fit",
    "bound_by_communication",
    "rule_of_thumb",
    "best_plan",
    "best_micro_batch",
    "forgotten_recompute",
    "average_stage",
    "experts_divided_twice",
    "checkpoint_interval",
    "goodput",
)

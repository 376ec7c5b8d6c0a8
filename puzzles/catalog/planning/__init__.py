"""Puzzles of the chapter `planning`: what a plan costs before it is paid for."""

ORDER = (
    "flops_of_a_step",
    "mfu_or_hfu",
    "time_of_a_product",
    "bound_by_communication",
    "fullest_rank",
    "forgotten_recompute",
    "average_stage",
    "experts_divided_twice",
    "does_it_fit",
    "best_micro_batch",
    "rule_of_thumb",
    "best_plan",
)

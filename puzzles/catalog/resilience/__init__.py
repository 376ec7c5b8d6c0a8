"""Puzzles of the chapter `resilience`: training that continues, whatever dies or is wrong."""

ORDER = (
    "atomic_save",
    "async_without_later_values",
    "every_checkpoint_is_the_first",
    "reshard_4_to_3",
    "resume_data_order",
    "agree_before_you_change",
    "which_placement_survives",
    "neighbours_copy",
    "elastic_batch",
    "vote_on_a_step",
    "nan_on_one_rank",
    "find_the_flipped_bit",
    "name_the_straggler",
    "heal_while_others_go_on",
    "best_interval",
)

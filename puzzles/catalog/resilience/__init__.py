"""Puzzles of the chapter `resilience`: training that continues, whatever dies or is wrong."""

ORDER = (
    "vote_on_a_step",
    "nan_on_one_rank",
    "find_the_flipped_bit",
    "name_the_straggler",
    "elastic_batch",
    "heal_while_others_go_on",
)

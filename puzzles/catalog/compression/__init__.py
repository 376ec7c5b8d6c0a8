"""Puzzles of the chapter `compression`: training that sends fewer bits, and computes with fewer."""

ORDER = (
    "block_quantiser",
    "stochastic_rounding",
    "reduce_scatter_once",
    "two_level_bits",
    "second_copy",
    "zero_plus_plus_volume",
    "error_feedback",
    "majority_vote",
    "one_bit_all_reduce",
    "one_bit_adam",
    "sum_of_largest",
    "power_sgd",
    "sends_as_much",
    "fp8_scale",
    "delayed_scale",
    "eight_bit_state",
    "straight_through",
)

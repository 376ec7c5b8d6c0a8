"""Puzzles of the chapter `compression`: training that sends fewer bits, and computes with fewer."""

ORDER = (
    "block_quantiser",
    "stochastic_rounding",
    "reduce_scatter_once",
    "two_level_bits",
    "second_copy",
    "zero_plus_plus_volume",
    "sends_as_much",
    "fp8_scale",
    "delayed_scale",
    "eight_bit_state",
    "straight_through",
)

"""Puzzles of the chapter `compression`: fewer bits."""

ORDER = (
    "block_quantiser",
    "stochastic_rounding",
    "reduce_scatter_once",
    "two_level_bits",
    "second_copy",
    "zero_plus_plus_volume",
    "sends_as_much",
)

"""Puzzles of the chapter `compression`: training that sends fewer bits, and computes with fewer."""

ORDER = (
    "fp8_scale",
    "delayed_scale",
    "eight_bit_state",
    "straight_through",
)

"""Puzzles of the chapter `compression`: training that sends fewer bits."""

ORDER = (
    "error_feedback",
    "majority_vote",
    "one_bit_all_reduce",
    "one_bit_adam",
    "sum_of_largest",
    "power_sgd",
)

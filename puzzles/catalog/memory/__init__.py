"""Puzzles of the chapter `memory`: what a training state weighs, and how to make it lighter."""

ORDER = (
    "accumulate",
    "recompute_block",
    "recompute_dropout",
    "bf16_stall",
    "bf16_sum",
    "master_weights",
    "loss_scaler",
    "offloaded_adam",
)

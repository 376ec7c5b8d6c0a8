"""Puzzles of the chapter `memory`: what a training state weighs, and how to make it lighter."""

ORDER = (
    "recipe_bytes",
    "will_it_fit",
    "activation_bytes",
    "chunked_loss",
    "accumulate",
    "recompute_block",
    "recompute_dropout",
    "bf16_stall",
    "bf16_sum",
    "master_weights",
    "loss_scaler",
    "offloaded_adam",
)

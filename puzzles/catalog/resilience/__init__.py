"""Puzzles of the chapter `resilience`: what goes wrong, and training that continues."""

ORDER = (
    "atomic_save",
    "async_without_later_values",
    "every_checkpoint_is_the_first",
    "reshard_4_to_3",
    "resume_data_order",
    "agree_before_you_change",
)

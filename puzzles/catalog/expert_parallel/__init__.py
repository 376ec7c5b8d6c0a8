"""Puzzles of the chapter `expert_parallel`: tokens that go to experts on other ranks."""

ORDER = (
    "bias_balancing",
    "whose_gradients",
    "node_limited",
)

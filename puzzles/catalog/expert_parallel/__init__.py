"""Puzzles of the chapter `expert_parallel`: tokens that go to experts on other ranks."""

ORDER = (
    "bias_balancing",
    "whose_gradients",
    "node_limited",
    "one_copy_to_a_node",
    "place_experts",
    "keep_the_routing",
    "etp_or_ep",
)

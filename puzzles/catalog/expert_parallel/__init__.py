"""Puzzles of the chapter `expert_parallel`: tokens that go to experts on other ranks."""

ORDER = (
    "route_top_k",
    "capacity",
    "permute_and_come_back",
    "counts_first",
    "dispatch",
    "combine",
    "rank_without_tokens",
    "auxiliary_loss",
    "bias_balancing",
    "whose_gradients",
    "etp_or_ep",
    "node_limited",
    "one_copy_to_a_node",
    "place_experts",
    "keep_the_routing",
)

"""Puzzles of the chapter `zero_bubble`: a pipeline in which no rank waits."""

ORDER = (
    "split_linear_backward",
    "zb_h1_order",
    "place_weight_gradients",
    "v_placement",
    "dual_pipe_overlap",
    "weight_stashing",
    "two_versions",
    "pipemare_correction",
)

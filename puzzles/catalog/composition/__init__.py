"""Puzzles of the chapter `composition`: several kinds of parallelism on one set of ranks."""

ORDER = (
    "coordinates_of_a_rank",
    "groups_along",
    "sum_along",
    "axis_bytes",
    "best_split",
    "whose_gradients_add_up",
    "fold_the_experts_mesh",
    "norm_over_all_axes",
    "batch_loss_and_gradient_groups",
    "find_the_missing_sum",
    "axes_from_bytes",
    "order_of_five_axes",
    "what_a_plan_needs",
)

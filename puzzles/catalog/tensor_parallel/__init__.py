"""Puzzles of the chapter `tensor_parallel`: ranks that share every matrix."""

ORDER = (
    "column_linear",
    "row_linear",
    "which_operator",
    "mlp",
    "attention_heads",
    "grouped_queries",
    "vocabulary_embedding",
    "vocabulary_cross_entropy",
    "tied_embedding",
    "dropout",
    "overlap_input_gradient",
    "ring_all_gather_matmul",
    "layer_bytes",
    "matmul_2d",
)

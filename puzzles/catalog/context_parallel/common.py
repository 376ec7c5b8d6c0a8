"""What several puzzles of this chapter share.

Letters of shapes: B batch, H heads of queries, K heads of keys and values, S tokens in all, Q tokens of a rank, d
numbers of a head, n ranks.
"""

DOUBLE = 8  # bytes of an element: everything is compared in float64

ATTENTION = (
    "MultiheadAttention", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer", "multi_head_attention_forward", "scaled_dot_product_attention",
)  # fmt: skip
"""What torch has for attention as a whole: `Puzzle.without` of puzzles that ask for attention itself."""

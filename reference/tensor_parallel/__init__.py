"""Tensor parallelism: every rank computes with a part of every matrix, and sees every token.

Read `plain.py`, then `region.py` and `linear.py`; `ops.py` puts them into a model. Each layer has 2 all-reduces of
B·S·D forward and 2 backward, each of which sends 2(t-1)/t of its size from each of t ranks.

    plain.py                f, g, and the MLP between them
    region.py               `plain.enter` and `leave` with sums that hide behind matrix products
    linear.py               column and row parallel layers, for any model
    vocabulary.py           embedding, logits and cross-entropy, split by vocabulary
    layout.py               which dim of which parameter is split
    ops.py                  what a model whose matrices are split computes, and its parameters cut as the layout says
    summa.py                a product on a mesh of ranks, where none holds more than a block; as plain as its paper
    cost.py                 what all of it sends, exactly
    answers/linear.py       both linear layers without autograd
    answers/heads.py        attention: each rank has some heads
    answers/vocabulary.py   both ends of a language model, forward and backward written out
    answers/dropout.py      the same mask outside a region, different ones inside
    answers/overlap.py      messages behind matrix products
    answers/layer_bytes.py  what a layer sends, as one formula
    lab/op_trace.py         what a block does, step by step, noted while it runs
    lab/simulate_layer.py   a block of a large model on imagined ranks
"""

from .layout import placement, require_fit, spec_of
from .linear import ColumnParallelLinear, RowParallelLinear
from .ops import parallelize_layers, placements, split_parameters
from .region import Region

__all__ = [
    "ColumnParallelLinear",
    "Region",
    "RowParallelLinear",
    "parallelize_layers",
    "placement",
    "placements",
    "require_fit",
    "spec_of",
    "split_parameters",
]

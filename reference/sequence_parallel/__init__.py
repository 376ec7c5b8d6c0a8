"""Sequence parallelism: between the regions of tensor parallelism, every rank has a slice of the sequence.

Read `plain.py`, then `region.py`. A layer sends 10 passes of (t-1)/t · B·S·D instead of the 8 of tensor parallelism: an
all-reduce is a reduce-scatter and an all-gather, and two gathers are repeated in backward. Norms, dropout and the
residual stream take a t-th of the memory and of the work.

    plain.py                gather and scatter, each the other's backward; `shared` for a norm's weight
    region.py               `plain` as a region of tensor parallelism: fewer tensors kept, messages that overlap
    fast/ring.py            `region` with gathers that travel around a ring while slices are multiplied
    answers/on_slices.py    the parts of a transformer that meet slices
    answers/training.py     a block in training: whose gradients are whole, and whose are parts
    answers/activations.py  what a layer keeps on one of t ranks
    lab/layer.py            the layer of GPT-2 and GPT-3, which keeps what its authors count and no more
"""

from reference.sequence_parallel.fast.ring import RingRegion

from .region import SequenceRegion

__all__ = ["RingRegion", "SequenceRegion"]

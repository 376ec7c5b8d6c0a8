"""Compression: training that sends fewer bits, and computes with fewer.

A gradient in 4 bits is an eighth of one in 32, and a step between nodes with slow links takes as much less.

Read `plain.py`, then what is of interest: each group of files stands alone.

Fewer bits, between ranks:

    plain.py                     blocks of integers with a scale, rounding by chance, a sum that is quantised once
    elements.py                  numbers of 4 and 8 bits: which there are, and how one rounds to them
    formats.py                   `plain.quantise` in bytes for any length: int8, int4, fp8, MXFP8, NVFP4
    quantised.py                 `plain.reduce_scatter_once` as a communicator: gathers, and sums on one level or two
    cost.py                      what a step of FSDP sends with fewer bits (ZeRO++), and what a second copy takes
    fast/tiles.py                `formats` tile by tile, at the speed of memory
    answers/bits.py              chance that is right on average; codes between ranks, on one level and on two
    answers/zero_plus_plus.py    which second copy, and what leaves a node
    lab/volume.py                what leaves a node in a step, counted and published

Gradients with memory:

    plain_memory.py    error feedback, votes, 1 bit in two stages, top-k and one step of PowerSGD, in one process
    memory.py          compressors: `plain_memory.sum_with_feedback` over real ranks, with a memory that has names
    compressed.py      the form of data parallelism whose gradients a compressor sums
    sparse.py          few elements: the largest with their places, or some that a seed chooses
    signs.py           one bit of each element: votes, and a sum in two stages
    low_rank.py        PowerSGD: two thin matrices
    cosines.py         DeMo: the largest cosines of each rank's momentum
    one_bit_adam.py    1-bit Adam, 0/1 Adam and 1-bit LAMB: momenta in 1 bit, once the variance is known
    choice.py          which compressor a run has

    answers/feedback.py      what was not sent goes with the next gradient
    answers/sign_bits.py     signs in bits, which the following ones are given
    answers/vote.py          the majority's sign, a bit there and a bit back
    answers/one_bit.py       an all-reduce in 1 bit, with two memories
    answers/two_phases.py    1-bit Adam
    answers/largest.py       the largest elements, with their places
    answers/subspace.py      a step of PowerSGD

Low precision:

    plain_low_bits.py     8-bit numbers with a scale: linear layers, delayed scales, an optimizer's state, rounding
    low_bits.py           `plain_low_bits.linear` under any plan, as ops; who agrees on which scale
    delayed.py            the same with scales from the steps before, on which ranks agree once in a step
    saved_scales.py       what those remember, of all stages of a pipeline, for a checkpoint
    gathered.py           weights of such layers travel in 8 bits under FSDP
    shared_blocks.py      blocks of neighbours that share a scale, as layouts cut them, and who agrees on it
    by_chance.py          AdamW over weights of 16 bits without another copy, which chance rounds
    eight_bit_adam.py     `plain_low_bits.eight_bit_adamw` under any plan, and in checkpoints
    fast/products.py      products of 8-bit numbers by kernels, where there are any
    answers/low_bits.py   what puzzles ask for
"""

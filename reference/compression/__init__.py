"""Compression: training that sends fewer bits, and computes with fewer.

Read `plain.py`, then what is of interest: each group of files stands alone.

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
    answers/bits.py          signs in bits, which the following ones are given
    answers/vote.py          the majority's sign, a bit there and a bit back
    answers/one_bit.py       an all-reduce in 1 bit, with two memories
    answers/two_phases.py    1-bit Adam
    answers/largest.py       the largest elements, with their places
    answers/subspace.py      a step of PowerSGD
"""

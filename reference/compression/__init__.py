"""Compression: training that sends fewer bits, and computes with fewer.

A weight that is gathered in 8 bits is a quarter of one in 32.

Read `plain.py`, then what is of interest: each group of files stands alone.

Low precision:

    plain_low_bits.py     8-bit numbers with a scale: linear layers, delayed scales, an optimizer's state, rounding
    low_bits.py           `plain_low_bits.linear` under any plan, as ops; who agrees on which scale
    gathered.py           weights of such layers travel in 8 bits under FSDP
    fast/products.py      products of 8-bit numbers by kernels, where there are any
    answers/low_bits.py   what puzzles ask for
"""

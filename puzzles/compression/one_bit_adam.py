"""compression.one_bit_adam: 1-bit Adam's two phases.

rankwise check compression.one_bit_adam
rankwise hint compression.one_bit_adam

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.answers.one_bit import one_bit_all_reduce


def one_bit_adam(
    x: Tensor,
    gradients: Tensor,
    freeze_after: int,
    rate: float,
    group: ProcessGroup,
) -> None:
    """1-bit Adam's two phases.

    Adam's step is `rate * m / (v.sqrt() + EPS)`, with `m = B1 m + (1 - B1) g`
    and `v = B2 v + (1 - B2) g²`, g being the sum of all ranks' gradients. In 1
    bit g² would be the same everywhere. But after some steps v changes little,
    and m is linear in g. So: the first `freeze_after` steps are exact, g
    travels as it is, and v is learned. In all later steps v stays as it is.
    Each rank brings its own gradient into its part of the momentum, and the
    momentum travels in 1 bit, with error feedback from one such step to the
    next.

    1 bit cannot say zero. An element that has had no gradient in all exact
    steps has v = 0, and what signs make of its momentum would be divided by
    EPS. Its momentum stays 0.

    Given are B1, B2, EPS and
    `one_bit_all_reduce(x, residual, of_server, group)`: about the sum of `x`
    over ranks, and updates the two memories in place, [N] and [N/n], zeros in
    the beginning.

    Args:
        x: [N] float64, the same on every rank, 8 n divides N; updated in place.
        gradients: [steps, N] of this rank. They may be overwritten.
        freeze_after: so many steps are exact, 1 or more.
        rate: of learning.
        group: n ranks. Any n.

    m and v begin at zero, and nothing is corrected for that.

    Budget: an all-reduce of N numbers in each exact step, and bits in all
    others.
    """
    raise NotImplementedError("not solved yet")

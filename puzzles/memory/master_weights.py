"""memory.master_weights: A step with master weights.

rankwise check memory.master_weights
rankwise hint memory.master_weights

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def update_masters(
    working: Sequence[Tensor],
    gradients: Sequence[Tensor],
    masters: Sequence[Tensor],
    scale: float,
    max_norm: float,
    learning_rate: float,
) -> Tensor:
    """A step with master weights.

    The model computes with 16-bit weights, `working`, and so backward gives
    16-bit gradients. Beside them there are `masters`, the same weights in
    float32: they are what learns. Take one step of gradient descent, in place:

    - the gradients belong to the loss times `scale`: divide that out;
    - clip: where the norm of all gradients together (one vector, the square
      root of the sum of all squares) is above `max_norm`, scale them all down
      so that it is `max_norm`;
    - every master moves by -learning_rate times its gradient, and the working
      weights follow the masters.

    The steps are tiny. Rounded to 16 bits, most of them would be no step at
    all, and it takes many to see that.

    Args:
        working: torch.bfloat16 or torch.float16 weights.
        gradients: of the loss times `scale`, in the dtype and the shapes of
            `working`. Leave them as they are.
        masters: float32, of the same shapes.
        scale: of the loss, 1 or more.
        max_norm: of the gradient of the loss itself, not of the loss times
            `scale`.
        learning_rate: what a gradient is multiplied by.

    Returns: the norm before clipping, of the gradient of the loss itself; a
    float32 scalar.

    Budget: memory for float32 copies of a few tensors, not for a copy of every
    gradient.
    """
    raise NotImplementedError("not solved yet")

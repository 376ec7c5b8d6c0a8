"""tensor_parallel.overlap_input_gradient:
Hide the all-reduce of the input's gradient.

rankwise check tensor_parallel.overlap_input_gradient
rankwise hint tensor_parallel.overlap_input_gradient

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Product = Callable[[Tensor, Tensor], Tensor]


def column_backward(
    x: Tensor,
    weight: Tensor,
    upstream: Tensor,
    multiply: Product,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Hide the all-reduce of the input's gradient.

    Backward of a column-parallel layer y = x Aᵀ is two products of the same
    size:

        gradient of x = u A, summed over ranks
        gradient of A = uᵀ x, of this rank's rows alone

    One of them has to travel, the other has not. So the one can travel while
    the other is computed.

    `dist.all_reduce(tensor, group=group, async_op=True)` returns at once, and
    gives you a request. Until that is done, no code may read or write the
    tensor: `request.wait()` returns when it is.

    Args:
        x: [T, D], the same on every rank.
        weight: [F / n, D], this rank's rows of A.
        upstream: [T, F / n], u: gradient of the loss with respect to this
            rank's features of y.
        multiply: `multiply(a, b)` is a @ b. It takes its time: use it for both
            products.
        group: n ranks. Any n.

    Returns: two tensors: the gradient of x, [T, D], the same on every rank; the
    gradient of this rank's weight, [F / n, D].

    Budget: on a modelled link the time of one product, and of a second one or
    of the all-reduce, whichever takes longer. One all-reduce of T D numbers.
    """
    raise NotImplementedError("not solved yet")

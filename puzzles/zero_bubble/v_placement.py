"""zero_bubble.v_placement: A model in the shape of a V.

rankwise check zero_bubble.v_placement
rankwise hint zero_bubble.v_placement

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

Load = Callable[[int], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]


def through_a_v(
    x: Tensor,
    target: Tensor,
    load: Load,
    multiply: Product,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """A model in the shape of a V.

    2n stages on n ranks, two on each. Where stages go around the ranks in a
    loop, the last rank has the last one, and rank 0 waits for all others before
    its first backward. And rank 0, whose stages come first each time, holds its
    activations for longest. Fold the model instead: a micro-batch goes down all
    ranks, and comes back up the same way. The rank where it turns hands it over
    to itself, without a message. Rank 0 has the first stage and the last: there
    it comes in, there the loss is.

    Take one micro-batch forward and backward. Stage s computes x Aᵀ with a
    weight A = load(s). The loss is half the sum of (y - target)², so the
    gradient of y is y - target. Backward of a stage, with u the gradient of
    what it gives, is two products:

        I    gradient of x = u A        the stage before waits for it, but no
                                        rank for that of the data
        W    gradient of A = uᵀ x       no rank waits for it

    So do W while the network carries I, or other ranks compute.

    Args:
        x, target: [B, D], on rank 0; on all other ranks NaN, in the same shape.
        load: `load(s)` is the weight of stage s, [D, D]. Load two.
        multiply: `multiply(a, b)` is a @ b. It takes its time: use it for all
            products.
        group: n ranks. Any n.

    Returns: two tensors: the gradients of this rank's weights, that of the
    lower stage number first.

    Budget: an activation and a gradient each way between neighbours, and no
    other message. On a modelled link, no time in which a rank waits for W.
    """
    raise NotImplementedError("not solved yet")

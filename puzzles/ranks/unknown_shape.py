"""ranks.unknown_shape: A parcel of unknown size.

rankwise check ranks.unknown_shape
rankwise hint ranks.unknown_shape

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def deliver(
    x: Tensor | None, source: int, target: int, group: ProcessGroup
) -> Tensor | None:
    """A parcel of unknown size.

    `source` has a tensor. `target` needs it and does not know its shape, so it
    can't even make a buffer to receive into. All that both know beforehand: it
    is float32 and has at most four dimensions.

    Args:
        x: on `source` a contiguous float32 tensor: a number, or up to four
            dimensions, or empty. Elsewhere None.
        source: the rank of `group` that sends.
        target: the rank of `group` that receives, another one.
        group: the ranks that call this.

    Returns: on `target` a tensor of the same shape with the same values,
    elsewhere None.

    Budget: two messages, the tensor itself and at most 40 bytes beside it.
    """
    raise NotImplementedError("not solved yet")

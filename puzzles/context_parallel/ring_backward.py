"""context_parallel.ring_backward: Backward around a ring.

rankwise check context_parallel.ring_backward
rankwise hint context_parallel.ring_backward

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.context_parallel.plain import attend_backward


def ring_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    seen: Tensor,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward around a ring.

    In forward, blocks of keys and values passed by this rank's queries. In
    backward they pass by once more. This rank finds what its queries make of
    the gradients of a block, for keys and values that are not its own. Another
    rank finds another part of the same gradients. All parts have to be summed,
    at the rank whose keys they are of.

    So let the gradient of a block travel with the block. Each rank adds its
    part, and passes it on to the next rank. The gradient of the queries stays
    where it is and grows with each block. How often must the gradient of a
    block be passed on until it is home?

    Given is `attend_backward(gradient, query, key, value, out, lse, seen)`,
    which returns one block's part of the gradients of query, key and value.
    `out` and `lse` are those of all blocks together, as forward has found them.

    Args:
        gradient: [B, H, Q, d], of this rank's outputs.
        query: [B, H, Q, d], this rank's.
        key: [B, K, Q, d], this rank's.
        value: [B, K, Q, d], this rank's.
        out: [B, H, Q, d], what this rank's queries have got of all blocks
            together.
        lse: [B, H, Q], of all blocks together; -inf where a query sees nothing
            at all.
        seen: [n, Q, Q] of bool: seen[j] says which of this rank's queries see
            which keys of rank j.
        group: n ranks. Any n.

    Returns: the gradients of this rank's query, key and value, like these.

    Budget: each rank sends n-1 blocks and n gradients of blocks, in 2n-1 steps.
    Alone it sends nothing.
    """
    raise NotImplementedError("not solved yet")

"""zero.prefetch: Prefetch the next layer.

rankwise check zero.prefetch
rankwise hint zero.prefetch

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Shape = tuple[int, int]


def prefetched(
    x: Tensor,
    shards: Sequence[Tensor],
    shapes: Sequence[Shape],
    layer: Callable[[Tensor, Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """Prefetch the next layer.

    Gathering just in time means waiting just in time: while a weight travels,
    no rank computes; while a layer computes, the network is idle. Let each
    weight travel while the layer before it computes.

    With `async_op=True` a collective returns at once, and gives you a request.
    Between that and the return of `request.wait()` the weight is in flight: no
    code may read or write it. One gather at a time: two share the link, and the
    one that is waited for takes longer.

    Args:
        x: (B, in), this rank's own batch.
        shards: this rank's shard of each weight, padded with zeros to an n-th.
        shapes: of each weight, (out, in).
        layer: `layer(x, weight)` computes x @ weight.T. It takes its time.
        group: n ranks. Any n.

    Returns: what the last layer gives.

    Budget: on a modelled link the time of the first gather and of all layers,
    or of the other gathers where those take longer. (n-1)/n of all weights
    sent, once. Memory for two weights, the one that computes and the next, and
    for what a layer is given and gives.
    """
    raise NotImplementedError("not solved yet")

"""One micro-batch through a V, written out: down all ranks, and back up.

    rank 0    stage 0              stage 2n-1, and the loss
    rank 1       stage 1        stage 2n-2
    ...                ...   ...
    rank n-1       stage n-1  stage n           handed over without a message

Rank 0 begins and ends every micro-batch: it alone needs data and targets, and it begins backward without waiting for
any message. What is held from F to W is held for long in stage 0 and shortly in stage 2n-1: every rank has a stage of
both kinds, so all hold as much. With stages in a loop (r and n + r) the first rank would hold almost three times as
much as the last.

| n ranks, a product c, a message m | time, of forward, I and W | sent by a rank                |
|-----------------------------------|---------------------------|-------------------------------|
| I is sent on first, then W        | 4 n c + 4 (n-1) m         | 2 activations and 2 gradients |
| W first                           | (n-1) c more              | the same                      |

Qi et al. 2024, "Pipeline parallelism with controllable memory", sec. 3.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Load = Callable[[int], Tensor]
"""The weight of a stage, by its number, [D, D]. It computes x weightᵀ."""

Product = Callable[[Tensor, Tensor], Tensor]
"""Multiplies two matrices. It takes its time."""


def through_a_v(x: Tensor, target: Tensor, load: Load, multiply: Product, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Forward and backward of 2n linear stages on n ranks; the loss is ½ of the sum of (y - target)².

    Args:
        x, target: [B, D], on rank 0; on the others, empty room of the same shape.
        load: of any stage.
        multiply: two matrices.
        group: n ranks.

    Returns:
        The gradients of the weights of stage `rank`, and of stage 2n - 1 - rank, each [D, D].
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    first, second = load(rank), load(2 * n - 1 - rank)
    requests = []

    def receive(source: int) -> Tensor:
        incoming = torch.empty_like(x)
        dist.recv(incoming, group=group, group_src=source)
        return incoming

    def send(outgoing: Tensor, destination: int) -> None:
        requests.append(dist.isend(outgoing, group=group, group_dst=destination))

    down = x if rank == 0 else receive(rank - 1)
    middle = multiply(down, first.T)
    if rank < n - 1:
        send(middle, rank + 1)
        middle = receive(rank + 1)
    y = multiply(middle, second.T)
    if rank > 0:
        send(y, rank - 1)
    upstream = y - target if rank == 0 else receive(rank - 1)

    of_middle = multiply(upstream, second)
    if rank < n - 1:
        send(of_middle, rank + 1)
        of_second = multiply(upstream.T, middle)
        of_middle = receive(rank + 1)
    if rank > 0:
        send(multiply(of_middle, first), rank - 1)
    if rank == n - 1:
        of_second = multiply(upstream.T, middle)
    of_first = multiply(of_middle.T, down)
    for request in requests:
        request.wait()
    return of_first, of_second

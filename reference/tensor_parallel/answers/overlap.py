"""Messages hidden behind matrix products, written out.

Two ways to find something to compute while a message travels:

    column_backward     backward of a linear layer is two products, and only one of them has to travel:
                        dX = dY A -> all-reduce, meanwhile dA = dYᵀ X
    all_gather_matmul   X A of a gathered X is a product of each rank's rows: multiply the rows that are there
                        while the next ones come around the ring

| function            | time; a product c, its message m | without overlap | sent by a rank | held beside the result   |
|---------------------|----------------------------------|-----------------|----------------|--------------------------|
| `column_backward`   | c + max(c, m)                    | 2 c + m         | 2(n-1)/n · X   | nothing                  |
| `all_gather_matmul` | c + (n-1) max(c, m)              | n c + (n-1) m   | (n-1)/n · X    | 2 n-ths of X, a product  |

In the second, c and m are those of one rank's rows. The bytes are those of the plain all-reduce and all-gather. Layers
that do the first are `region.Columns`; the second is what `reference.sequence_parallel.fast.ring` makes of a whole
region.

Megatron-LM does the first in `linear_with_grad_accumulation_and_async_allreduce`, and hides gathers in the same way
(Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", sec. 4.2.2). The second is
Wang et al. 2023, "Overlap communication with dependent computation via decomposition in large deep learning models", in
a compiler; PyTorch calls it asynchronous tensor parallelism.
"""

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import start

Product = Callable[[Tensor, Tensor], Tensor]
"""Multiplies two matrices. It takes its time."""


def column_backward(
    x: Tensor, weight: Tensor, upstream: Tensor, multiply: Product, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Backward of a column-parallel layer y = x weightᵀ: the gradient of x travels while that of weight is computed.

    Args:
        x: [N, D], the same on every rank.
        weight: [F / t, D], this rank's rows.
        upstream: [N, F / t], gradient of the loss with respect to y.
        multiply: two matrices.
        group: t ranks.

    Returns:
        The gradient of x, [N, D], the same on every rank; the gradient of this rank's weight, [F / t, D].
    """
    of_x = multiply(upstream, weight)
    work = dist.all_reduce(of_x, group=group, async_op=True)
    of_weight = multiply(upstream.T, x)
    work.wait()
    return of_x, of_weight


def all_gather_matmul(x: Tensor, weight: Tensor, multiply: Product, group: ProcessGroup) -> Tensor:
    """Every rank's x, one after the other, times weightᵀ; the rows of one rank are multiplied while others travel.

    Args:
        x: [N / n, D], this rank's rows.
        weight: [F, D], another one on each rank.
        multiply: two matrices.
        group: n ranks.

    Returns:
        [N, F].
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    out = x.new_empty(n * len(x), len(weight))
    places, buffers = out.tensor_split(n), x.new_empty(2, *x.shape)
    held = x
    for step in range(n):
        incoming, requests = buffers[step % 2], []
        if step < n - 1:
            requests = start([(held, (rank + 1) % n)], [(incoming, (rank - 1) % n)], group)
        places[(rank - step) % n].copy_(multiply(held, weight.T))
        for request in requests:
            request.wait()
        held = incoming
    return out

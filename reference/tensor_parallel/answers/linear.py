"""Both parallel linear layers without autograd: there and back in a few matrix products and one sum each.

                        forward                     backward, of the gradient u of y
    column-parallel     y_i = x W_iᵀ + b_i          dx = sum of u_i W_i     dW_i = u_iᵀ x     db_i = sum of u_i's rows
    row-parallel        y = sum of x_i W_iᵀ + b     dx_i = u W_i            dW_i = uᵀ x_i     db = sum of u's rows

Rank i has W_i: of torch's weight [out, in] some rows in the first layer, some columns in the second. Each layer adds up
over the ranks once, the first on the way back and the second on the way there.

Shoeybi et al. 2019, "Megatron-LM", sec. 3. `ColumnParallelLinear` and `RowParallelLinear` are the layers to use.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single


def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor, join: bool, group: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear layer of which each rank has some output features, forward and backward.

    Args:
        x: [T, D], the same on every rank.
        weight: [F / n, D], this rank's.
        bias: [F / n], this rank's.
        upstream: gradient of y, of its shape; the same on every rank with `join`.
        join: whether every rank gets all ranks' features.
        group: n ranks.

    Returns:
        y, [T, F / n], or [T, F] with `join`; the gradients of x, weight and bias.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    y = x @ weight.T + bias
    if join:
        parts = y.new_empty(n * len(y), len(weight))
        all_gather_single(parts, y, group=group)
        y = torch.cat(parts.chunk(n), dim=1)
        upstream = upstream.chunk(n, dim=1)[rank]
    x_gradient = upstream @ weight
    dist.all_reduce(x_gradient, group=group)
    return y, x_gradient, upstream.T @ x, upstream.sum(0)


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor, split: bool, group: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear layer of which each rank has some input features, forward and backward.

    Args:
        x: [T, F / n], this rank's; with `split` [T, F], the same on every rank.
        weight: [D, F / n], this rank's.
        bias: [D], the same on every rank.
        upstream: [T, D], gradient of y, the same on every rank.
        split: whether this rank's features are to be taken out of x.
        group: n ranks.

    Returns:
        y, [T, D]; the gradients of x, in its shape, of weight and of bias.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    own = x.chunk(n, dim=1)[rank] if split else x
    y = own @ weight.T
    dist.all_reduce(y, group=group)
    y += bias
    x_gradient = upstream @ weight
    if split:
        parts = x_gradient.new_empty(n * len(x), x_gradient.shape[1])
        all_gather_single(parts, x_gradient, group=group)
        x_gradient = torch.cat(parts.chunk(n), dim=1)
    return y, x_gradient, upstream.T @ own, upstream.sum(0)

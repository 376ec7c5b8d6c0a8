"""An all-to-all between dims of a tensor, through which autograd goes back, in one call of the same bytes for any size.

`reference.collectives.differentiable` has one that takes whichever algorithm is fastest: for small tensors on many
ranks that is one with fewer steps and more bytes.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.differentiable import Conjugate


def all_to_all(x: Tensor, group: ProcessGroup, split_dim: int, join_dim: int) -> Tensor:
    """Cut `x` along `split_dim` into n equal parts, the j-th for rank j, and put what comes side by side.

    Args:
        x: the same shape on every rank; n divides x.shape[split_dim].
        group: n ranks.
        split_dim, join_dim: along which `x` is cut, and what comes is joined.
    """

    def exchanged(parts: Tensor) -> Tensor:
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return received

    parts = x.unflatten(split_dim, (dist.get_world_size(group), -1)).movedim(split_dim, 0)
    return torch.cat(Conjugate.apply(parts, exchanged, exchanged).unbind(), join_dim)

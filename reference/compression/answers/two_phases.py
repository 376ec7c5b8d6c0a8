"""1-bit Adam: first the variance is learned, then it is frozen and the momentum travels in 1 bit."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .one_bit import one_bit_all_reduce

B1 = 0.9
B2 = 0.95
EPS = 1e-8


def one_bit_adam(
    x: Tensor,
    gradients: Tensor,
    freeze_after: int,
    rate: float,
    group: ProcessGroup,
) -> None:
    """Take a step for each gradient, with momentum and variance that begin at zero, without correction for that.

    Args:
        x: [N] float64, the same on every rank, 8 n divides N; updated in place.
        gradients: [steps, N] of this rank; the gradient of a step is the sum over ranks.
        freeze_after: so many steps are exact, 1 or more.
        rate: of learning.
        group: n ranks. Any n.
    """
    n = dist.get_world_size(group)
    m, v, residual = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    of_server = torch.zeros_like(x[: len(x) // n])
    for step, gradient in enumerate(gradients):
        if step < freeze_after:
            dist.all_reduce(gradient, group=group)
            m = B1 * m + (1 - B1) * gradient
            v = B2 * v + (1 - B2) * gradient**2
        else:
            m = one_bit_all_reduce(B1 * m / n + (1 - B1) * gradient, residual, of_server, group)
            m[v == 0] = 0
        x -= rate * m / (v.sqrt() + EPS)

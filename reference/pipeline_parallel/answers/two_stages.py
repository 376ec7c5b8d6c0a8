"""A model over two ranks without a schedule, and what ranks in a row say to each other at once.

What `run.Pipeline` does for any order of any stages is, for two stages and one batch, four messages' ends:

    rank 0      h = tanh(x W0ᵀ)     send h                              receive dh      dW0
    rank 1                          receive h       loss, dW1, dh       send dh
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def two_stages(x: Tensor | None, target: Tensor | None, weight: Tensor, group: ProcessGroup) -> float | None:
    """Forward and backward of two linear layers with tanh between them, each on a rank of its own.

    Args:
        x: [B, D] on rank 0, None on rank 1.
        target: [B, F] on rank 1, None on rank 0.
        weight: [H, D] on rank 0, [F, H] on rank 1, a leaf that requires a gradient: it gets one.
        group: 2 ranks.

    Returns:
        On rank 1 the loss, the mean over all elements of (y - target)²; None on rank 0.

    Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism", sec. 2.2.
    """
    if dist.get_rank(group) == 0:
        h = (x @ weight.T).tanh()
        dist.send(h.detach(), group=group, group_dst=1)
        gradient = torch.empty_like(h)
        dist.recv(gradient, group=group, group_src=1)
        h.backward(gradient)
        return None
    h = weight.new_empty(len(target), weight.shape[1])
    dist.recv(h, group=group, group_src=0)
    y = h.requires_grad_() @ weight.T
    loss = (y - target).square().mean()
    loss.backward()
    dist.send(h.grad, group=group, group_dst=0)
    return loss.item()


def exchange_between_stages(
    activation: Tensor | None, gradient: Tensor | None, group: ProcessGroup
) -> tuple[Tensor | None, Tensor | None]:
    """Hand an activation to the stage after and a gradient to the stage before, and take theirs, all at once.

    Args:
        activation: for the next rank; None on the last one.
        gradient: for the rank before; None on the first one. All tensors are alike.
        group: p ranks in a row.

    Returns:
        The activation of the rank before, None on the first; the gradient of the next rank, None on the last.

    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM".
    """
    rank, operations = dist.get_rank(group), []
    before = after = None
    if gradient is not None:
        before = torch.empty_like(gradient)
        operations.append(dist.P2POp(dist.isend, gradient, group=group, group_peer=rank - 1))
        operations.append(dist.P2POp(dist.irecv, before, group=group, group_peer=rank - 1))
    if activation is not None:
        after = torch.empty_like(activation)
        operations.append(dist.P2POp(dist.isend, activation, group=group, group_peer=rank + 1))
        operations.append(dist.P2POp(dist.irecv, after, group=group, group_peer=rank + 1))
    for request in dist.batch_isend_irecv(operations) if operations else []:
        request.wait()
    return before, after

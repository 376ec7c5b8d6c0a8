"""A step of a pipeline on one rank, with every message written out.

    forward     receive what the rank before has made; compute; send it on
    backward    receive the gradient of what was sent; go backward; send the gradient of what was received

Which of the two comes next is data: a line of a schedule, such as `orders.gpipe(p, m).lines[rank]`. GPipe goes forward
with all micro-batches and then backward; 1F1B goes backward as soon as it can, and holds p micro-batches at most. The
sums are the same. Each micro-batch sends one activation and one gradient over each border between ranks.

Where forward and backward alternate, messages of neighbours cross. Gloo lets them; on NCCL each direction needs a
process group of its own (`channels`), and a receive that is begun early costs no wait (`messages`).

Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism"; Narayanan et al.
2021, "Memory-efficient pipeline-parallel DNN training".
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from .schedule import Action, Kind


def step(
    line: Sequence[Action],
    stage: nn.Module,
    inputs: Callable[[int], Tensor],
    loss: Callable[[Tensor, int], Tensor],
    like: Tensor,
    group: ProcessGroup,
) -> Tensor | None:
    """Forward and backward of all micro-batches; gradients add up in the parameters of `stage`.

    Args:
        line: what this rank does, in order.
        stage: the layers of this rank; rank r has the r-th part of the model.
        inputs: the input of a micro-batch, by number; called on rank 0.
        loss: from the last stage's output of a micro-batch, and its number, to its part of the loss.
        like: of the shape and dtype of what ranks hand on.
        group: p ranks in a row.

    Returns:
        The sum of losses on the last rank, None on all others.
    """
    rank, last = group.rank(), group.size() - 1
    held: dict[int, tuple[Tensor, Tensor]] = {}  # input and output of a micro-batch, until its backward
    sent = []
    total = like.new_zeros(()) if rank == last else None
    for kind, _, k in line:
        if kind is Kind.FORWARD:
            x = inputs(k) if rank == 0 else receive(like, rank - 1, group).requires_grad_()
            y = stage(x) if rank < last else loss(stage(x), k)
            held[k] = x, y
            if rank < last:
                sent.append(send(y.detach(), rank + 1, group))
            else:
                total += y.detach()
        else:
            x, y = held.pop(k)
            y.backward(receive(like, rank + 1, group) if rank < last else None)
            if rank > 0:
                sent.append(send(x.grad, rank - 1, group))
    for work, _ in sent:
        work.wait()
    return total


def receive(like: Tensor, source: int, group: ProcessGroup) -> Tensor:
    """What the rank `source` sends next, in the shape and dtype of `like`."""
    x = torch.empty_like(like)
    dist.recv(x, group=group, group_src=source)
    return x


def send(x: Tensor, target: int, group: ProcessGroup) -> tuple[dist.Work, Tensor]:
    """Begin to send; `x` must live until the work is done."""
    return dist.isend(x, group=group, group_dst=target), x

"""An all-reduce in 1 bit, in two stages, with errors of worker and server."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .sign_bits import decode, encode


def one_bit_all_reduce(x: Tensor, residual: Tensor, of_server: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of `x` over ranks, in signs and scales on the way to the servers of chunks and on the way back.

    Args:
        x: [N] of this rank, float64; 8 n divides N.
        residual: [N], what this rank did not send before; updated in place.
        of_server: [N / n], what it did not send as the server of its chunk; updated in place.
        group: n ranks. Any n.

    Returns:
        [N], the same on every rank.
    """
    n = dist.get_world_size(group)
    residual += x
    message = encode(residual.view(n, -1))
    residual -= decode(message).view(-1)
    received = torch.empty_like(message)
    dist.all_to_all_single(received, message, group=group)
    of_server += decode(received).sum(0)
    answer = encode(of_server)
    of_server -= decode(answer)
    answers = message.new_empty(n * len(answer))
    dist.all_gather_into_tensor(answers, answer, group=group)
    return decode(answers.view(n, -1)).view(-1)

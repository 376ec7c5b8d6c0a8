"""expert_parallel.rank_without_tokens: A rank that gets no tokens.

rankwise check expert_parallel.rank_without_tokens
rankwise hint expert_parallel.rank_without_tokens

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.expert_parallel.answers.exchange import exchange_rows


def mixture(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    group: ProcessGroup,
) -> Tensor:
    """A rank that gets no tokens.

    A layer of experts over ranks trains for hours. Then, in one step, it hangs.
    Forward has succeeded on all ranks. One of them has left backward and waits
    in the all-reduce of gradients; all others wait in backward, in an exchange
    of rows. In that step no token of any rank had chosen an expert of that one
    rank.

    With few tokens, or a router that has favourites, this is no rare case. It
    was found in several of the libraries that large models are trained with,
    each time anew.

    Mend the program. A rank may get no rows, or have no tokens, or both. It
    must go through the same exchanges as all others, in backward, too. And
    parameters of experts that had nothing to do get gradients, of zeros: what
    comes after, a sum over replicas or a norm of all gradients, counts on them.

    Given is `exchange_rows(x, sent, received, group)`, which is right: the
    first sent[0] rows of `x` go to rank 0, the next sent[1] to rank 1; the
    result has received[0] rows of rank 0 first. Its backward is the same
    exchange the other way, and a call of all ranks.

    Args:
        x: [T, D], tokens of this rank. T may be 0, and differ from rank to
            rank.
        chosen: [T, k] of int64, experts of each token, none of them twice. Rank
            r has the experts from r · E/n to (r+1) · E/n - 1.
        weights: [T, k], of what they make.
        up: [E/n, F, D], of this rank's experts. One expert makes tanh(row @
            up.T) @ down.T of a row.
        down: [E/n, D, F].
        group: n ranks. Any n.

    Returns: [T, D], with gradients for x, weights, up and down.

    Budget: one exchange of counts, one of rows there and one back, the last two
    in backward, too; and no row that no token has asked for.
    """
    n, here, k = dist.get_world_size(group), len(up), chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    wanted = torch.bincount(chosen.flatten(), minlength=n * here).view(n, here)
    counts = torch.empty_like(wanted)
    dist.all_to_all_single(counts, wanted, group=group)
    sent, received = wanted.sum(1).tolist(), counts.sum(1).tolist()

    rows = exchange_rows(x[order // k], sent, received, group)
    if len(rows) == 0:
        made = torch.empty(0, x.shape[1], dtype=x.dtype)
    else:
        expert_of_row = torch.arange(here).repeat(n)
        expert_of_row = expert_of_row.repeat_interleave(counts.flatten())
        by_expert = expert_of_row.argsort(stable=True)
        parts = rows[by_expert].split(counts.sum(0).tolist())
        outputs = []
        for part, a, b in zip(parts, up, down):
            outputs.append(torch.tanh(part @ a.T) @ b.T)
        made = torch.cat(outputs)[by_expert.argsort()]

    back = exchange_rows(made, received, sent, group)
    of_choices = back[order.argsort()].view(-1, k, x.shape[1])
    return (of_choices * weights[..., None]).sum(1)

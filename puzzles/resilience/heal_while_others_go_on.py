"""resilience.heal_while_others_go_on: Heal while the others continue.

rankwise check resilience.heal_while_others_go_on
rankwise hint resilience.heal_while_others_go_on

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.resilience.answers.momentum import momentum_step


def heal(
    state: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
    new: int,
    rate: float,
    group: ProcessGroup,
) -> None:
    """Heal while the others continue.

    A replica has died and comes back with nothing. The others have the weights
    and the optimizer's state, P pieces of it; to send it all at once would make
    them wait, and by the time it has arrived by a slow way, they are some steps
    ahead. So send one piece in each step, and let the one that heals take part
    in each sum of gradients from the first step on: then it knows what the
    others update with, and can update what it has.

    Given is `momentum_step(weight, momentum, gradient, rate)`, a step in place.
    It treats each element by itself.

    Args:
        state: P pieces [2, N], weight and momentum, equal on all ranks but
            `new`, where they mean nothing. Updated in place: after the last
            step they must be equal on all ranks, to those of a training that
            `new` had no part in.
        gradients: of each step a list of P gradients [N]. There are P steps or
            more. A step is taken with the mean over all ranks but `new`, whose
            gradients mean nothing. They may be overwritten.
        new: group rank of the replica that heals.
        rate: of learning.
        group: n ranks, 2 or more.

    Budget: one all-reduce of P · N numbers in each step; each piece is sent
    once, by one rank, and between two all-reduces no rank sends more than one
    piece.
    """
    raise NotImplementedError("not solved yet")

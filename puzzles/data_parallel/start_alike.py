"""data_parallel.start_alike: Let all replicas start alike.

rankwise check data_parallel.start_alike
rankwise hint data_parallel.start_alike

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed import ProcessGroup


@torch.no_grad()
def broadcast_state(
    module: nn.Module, group: ProcessGroup, root: int = 0
) -> None:
    """Let all replicas start alike.

    Ranks that sum their gradients take the same steps. So replicas that start
    from the same numbers stay the same, and no gradient brings those together
    that do not. Give every rank the state of rank `root`, bit by bit: the
    parameters, and also the buffers, such as the running mean of a batch norm,
    which no gradient ever corrects.

    `module.parameters()` and `module.buffers()` name each tensor once. Not
    everything is in `state_dict()`: some buffers are not to be saved, and a
    tied parameter is there twice.

    Args:
        module: an `nn.Module` with the same parameters and buffers on every
            rank, of several dtypes, but not with the same values.
        group: n ranks. Any n.
        root: group rank of the one whose state counts.

    Afterwards every tensor of `module` holds what it holds on `root`, in place.

    Budget: one broadcast for each dtype. Numbers of different dtypes do not fit
    into one tensor without a loss.
    """
    raise NotImplementedError("not solved yet")

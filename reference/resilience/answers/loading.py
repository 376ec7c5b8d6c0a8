"""Loading on other ranks than have saved, and changing nothing where one of them cannot."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def reshard(
    state: dict[str, Tensor],
    rows: dict[str, int],
    saved_by: int,
    read: Callable[[int, str, int, int], Tensor],
    group: ProcessGroup,
) -> None:
    """Fill this rank's rows of each tensor with what ranks of another number have saved.

    Args:
        state: this rank's rows of each tensor, by name; what is in them is replaced.
        rows: of each whole tensor.
        saved_by: how many ranks have saved.
        read: `read(rank, name, begin, end)` gives rows [begin, end) of those that `rank` has saved.
        group: the ranks that load.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    for name, mine in state.items():
        old, new = math.ceil(rows[name] / saved_by), math.ceil(rows[name] / n)
        begin = min(rank * new, rows[name])
        at, end = begin, begin + len(mine)
        while at < end:
            owner, inside = divmod(at, old)
            count = min(old - inside, end - at)
            mine[at - begin : at - begin + count] = read(owner, name, inside, inside + count)
            at += count


def samples_of_step(
    step: int, batch: int, samples: int, order: Callable[[int], list[int]], group: ProcessGroup
) -> list[int]:
    """Which samples this rank reads in a step: a function of the step alone, on any number of ranks.

    Args:
        step: from 0, counted over all epochs.
        batch: samples of a step, of all ranks together.
        samples: of an epoch.
        order: in which an epoch's samples come; epochs count from 0.
        group: n ranks, which share each batch.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    share = batch // n
    first = step * batch + rank * share
    orders = {epoch: order(epoch) for epoch in range(first // samples, (first + share - 1) // samples + 1)}
    return [orders[at // samples][at % samples] for at in range(first, first + share)]


def load_together(state: dict[str, Tensor], read: Callable[[str], Tensor], group: ProcessGroup) -> bool:
    """Load a checkpoint in place, on all ranks or on none.

    Args:
        state: tensors by name.
        read: gives what was saved under a name. Raises OSError for what is damaged.
        group: all ranks.

    Returns:
        Whether it was loaded, the same on every rank.
    """
    try:
        loaded = {name: read(name) for name in state}
        fits = all(loaded[name].shape == x.shape for name, x in state.items())
    except OSError:
        fits = False
    all_fit = torch.tensor(int(fits))
    dist.all_reduce(all_fit, op=dist.ReduceOp.MIN, group=group)
    if not all_fit:
        return False
    for name, x in state.items():
        x.copy_(loaded[name])
    return True

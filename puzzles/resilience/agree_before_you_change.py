"""resilience.agree_before_you_change: Agree before you change anything.

rankwise check resilience.agree_before_you_change
rankwise hint resilience.agree_before_you_change

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def load_together(
    state: dict[str, Tensor], read: Callable[[str], Tensor], group: ProcessGroup
) -> bool:
    """Agree before you change anything.

    All ranks load a checkpoint, each its own part. A file may be damaged, and
    perhaps one rank alone sees it. A rank that then raises leaves the others
    waiting; ranks that load without it continue with a mixture of two models.
    So: all load, or none does, and nothing has changed then.

    Args:
        state: tensors by name, to be loaded in place.
        read: `read(name)` gives a new tensor, what was saved under this name.
            It raises OSError for what is damaged. What it gives may have
            another shape, if the checkpoint is another model's: that does not
            fit.
        group: n ranks. Any n.

    Returns: True on every rank if all of them have loaded; False on every rank
    if any of them could not. Then every tensor of `state` is as it was, on all
    ranks.

    Budget: one call to torch.distributed.
    """
    raise NotImplementedError("not solved yet")

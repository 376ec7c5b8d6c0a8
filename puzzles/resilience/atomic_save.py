"""resilience.atomic_save: A checkpoint is there whole, or not at all.

rankwise check resilience.atomic_save
rankwise hint resilience.atomic_save

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


def save_atomically(
    shard: Tensor,
    step: int,
    before: int,
    write: Callable[[str, Tensor], None],
    sync: Callable[[str], None],
    rename: Callable[[str, str], None],
    delete: Callable[[str], None],
    group: ProcessGroup,
) -> None:
    """A checkpoint is there whole, or not at all.

    Each rank has a shard to save. The power may fail at any moment, on all
    ranks at once. A run that starts again looks for folders called `step-7` and
    so on, and loads the newest. So at each moment that one must be whole.

    Rank r's shard goes into the file `r` of the new folder. `step-{before}` is
    the checkpoint that is there; the disk has room for two, so delete it, but
    never be without one. When this returns on any rank, the new checkpoint can
    be loaded.

    Args:
        shard: what this rank saves.
        step: of the new checkpoint, whose folder is `step-{step}` in the end.
        before: the step of the checkpoint that is there.
        write: `write(path, x)` writes a file, and makes its folder. What is in
            it is on the disk only after
        sync: `sync(path)`; until then a power cut may take it, whatever the
            folder is called.
        rename: `rename(folder, name)` happens whole or not at all, and is on
            the disk at once.
        delete: `delete(folder)`, file by file.
        group: n ranks, that see the same disk. Any n.

    What is checked is not the clock but the messages: a rank that must wait for
    another must hear from it.

    Budget: two calls to torch.distributed, and no tensor is sent.
    """
    raise NotImplementedError("not solved yet")

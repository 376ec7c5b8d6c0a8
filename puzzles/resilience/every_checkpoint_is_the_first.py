"""resilience.every_checkpoint_is_the_first: Every checkpoint is the first.

rankwise check resilience.every_checkpoint_is_the_first
rankwise hint resilience.every_checkpoint_is_the_first

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


def train(
    steps: int,
    state: dict[str, Tensor],
    update: Callable[[], None],
    behind: Callable[[Callable[[], None]], Callable[[], None]],
    write: Callable[[int, dict[str, Tensor]], None],
    group: ProcessGroup,
) -> None:
    """Every checkpoint is the first.

    A run saves after each step, behind the next one. Every checkpoint is
    complete, has its checksums, and can be loaded; and a run that resumes from
    step 900 has the loss of step 1. Find out why, and mend it. (A second
    mistake waits behind the first.)

    Args:
        steps: how many to take; steps count from 1.
        state: tensors by name.
        update: `update()` takes a step, and changes `state` in place.
        behind: `wait = behind(do)` lets a thread call `do()`, some time from
            now, one such call after another; `wait()` returns when that is
            done.
        write: `write(step, tensors)` writes this rank's part of the checkpoint
            of a step.
        group: the ranks, which end together: one barrier, after all is written.

    Afterwards each step was written once, in order, with the values that its
    update has left.

    Budget: memory for one copy of the state, however many steps there are.
    """
    room, waits = {}, []
    for step in range(1, steps + 1):
        update()
        for name, x in state.items():
            room.setdefault(name, x.clone())  # memory for a copy, taken once
        waits.append(behind(lambda step=step: write(step, room)))
    for wait in waits:
        wait()
    dist.barrier(group)

"""resilience.async_without_later_values:
Write behind training, without later values.

rankwise check resilience.async_without_later_values
rankwise hint resilience.async_without_later_values

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


def save_behind(
    state: dict[str, Tensor],
    counters: dict[str, int],
    room: dict[str, Tensor],
    behind: Callable[[Callable[[], None]], Callable[[], None]],
    write: Callable[[dict[str, Tensor], dict[str, int]], None],
    publish: Callable[[], None],
    group: ProcessGroup,
) -> Callable[[], None]:
    """Write behind training, without later values.

    A disk is slow, and a step must not wait for it. So a thread writes the
    checkpoint while training continues. But training changes everything in
    place: weights, moments, counts. What is written must be what was there when
    `save_behind` was called, all of one moment. It is called again and again,
    always with the same `room`, and never before the last one was finished.

    Args:
        state: tensors by name. The next step changes them in place.
        counters: numbers by name: steps, samples. The next step changes this
            dict, too.
        room: tensors of the same names, shapes and dtypes as `state`, for a
            copy. Take no other memory.
        behind: `wait = behind(do)` lets the thread call `do()`, some time from
            now; `wait()` returns when that is done. `do` must not use `group`:
            the next step does, in its own thread.
        write: `write(tensors, numbers)` writes this rank's file, to the last
            byte.
        publish: `publish()` gives the checkpoint its name. One rank calls it,
            when all ranks have written.
        group: n ranks. Any n.

    Returns: `finish`, without arguments. All ranks call it together between two
    later steps. When it returns, the checkpoint has its name.

    Budget: no memory but `room`; two calls to torch.distributed for each save.
    """
    raise NotImplementedError("not solved yet")

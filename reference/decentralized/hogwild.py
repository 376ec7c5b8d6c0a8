"""Hogwild: processes write to the same weights in shared memory, at any time, without a lock.

This is `plain_unscheduled.asynchronous` with: no server between those that write. Recht et al. 2011, "HOGWILD!"
(arXiv:1106.5730).

A lock would cost more than the step. Without one, two processes may read the same number, and the second that writes
undoes what the first has written. Where each step touches few numbers of many, that is rare, and SGD is noisy anyway.
Where all steps touch all numbers, it is not rare.

What is read may also be half of an update and half of another, so there is no order from which a run can be replayed;
how late updates were is counted nevertheless. `add_ones` shows how many are undone.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class SparseGradient(NamedTuple):
    """A gradient that is zero but at a few places."""

    places: Tensor  # [k] of int64, each once
    values: Tensor  # [k]


class SharedWeights(NamedTuple):
    """What all processes of a machine see: a change of one is there for all others, at once."""

    weights: Tensor  # [N]
    clocks: Tensor  # [processes] of int64: how many updates each has written

    @classmethod
    def at(cls, folder: Path, size: int, processes: int) -> "SharedWeights":
        """Memory that has a name: each process that asks for it has the same. It begins with zeros, in float64."""
        clocks = torch.from_file(str(folder / "clocks"), shared=True, size=processes, dtype=torch.int64)
        return cls(torch.from_file(str(folder / "weights"), shared=True, size=size, dtype=torch.float64), clocks)


def hogwild(
    shared: SharedWeights, process: int, gradient: Callable[[int, Tensor], SparseGradient], steps: int, rate: float
) -> list[int]:
    """Take steps on shared weights. Each process calls this, and none waits for another.

    Args:
        shared: of all processes.
        process: which of them this one is.
        gradient: of a step, at the weights as they are while it looks.
        steps: of this process.
        rate: of learning.

    Returns:
        The staleness of each step: updates of others between the moment when it began to read and that of its write.
    """
    weights, clocks = shared
    staleness = []
    for step in range(steps):
        before = int(clocks.sum())
        places, values = gradient(step, weights)
        staleness.append(int(clocks.sum()) - before)
        weights.index_add_(0, places, values, alpha=-rate)
        clocks[process] += 1  # a number that no other process writes
    return staleness


def add_ones(shared: SharedWeights, process: int, places: Iterable[Tensor]) -> None:
    """Add 1 at places [k], again and again. What the sum of the weights lacks afterwards was undone by others."""
    for each in places:
        shared.weights.index_add_(0, each, torch.ones(len(each), dtype=torch.float64))
        shared.clocks[process] += 1

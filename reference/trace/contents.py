"""Whose data a tensor holds, step by step: what a trace alone cannot say.

Rank r fills its tensor with 16^r. After any number of sends and sums, digit r of a value (in base 16) then says how
often rank r's data is in it. So a sum over all ranks reads 11...1, and what was added twice shows as a 2.

    def by_step():                                             # runs on every rank
        x = tagged(numel=8)
        return observe(lambda: all_reduce.ring(x, dist.group.WORLD), x, chunks=4)

    contents, trace = cluster.trace(by_step)                   # for visualizations.collective
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .calls import Call
from .tap import world_recorder

BASE = 16
MOST_RANKS = 16  # digits of an int64

Counts = tuple[int, ...]
"""How often the data of rank 0, 1, ... is in a chunk; empty if no rank's is."""


@dataclass(frozen=True)
class Contents:
    """What one rank's tensor held over time.

    `before[i]` is what it held when the rank's i-th call was posted, chunk by chunk, and `before[-1]` at the end. None
    is a chunk that is not of one kind.
    """

    before: tuple[tuple[Counts | None, ...], ...]


def tagged(numel: int) -> Tensor:
    """An int64 tensor, (numel,), that says whose it is: this rank's."""
    if dist.get_world_size() > MOST_RANKS:
        raise ValueError(f"an int64 has room for the tags of {MOST_RANKS} ranks, not of {dist.get_world_size()}")
    return torch.full((numel,), BASE ** dist.get_rank(), dtype=torch.int64)


def observe(run: Callable[[], object], tensor: Tensor, chunks: int) -> Contents:
    """Call `run()` and note what `tensor` holds before each call of this rank to `torch.distributed`, and at the end.

    Args:
        run: does the communication. Call `observe` on every rank, in a function that `cluster.trace` runs.
        tensor: contiguous int64 that starts as `tagged` or as zeros.
        chunks: how many pieces to look at separately, cut as `tensor_split` cuts.

    Raises:
        RuntimeError: on what is no rank of a `Cluster`.
    """
    recorder = world_recorder()
    posted, before = recorder.posted, []

    def note(call: Call) -> None:
        before.append(_look(tensor, chunks))
        posted(call)

    recorder.posted = note
    try:
        run()
    finally:
        recorder.posted = posted
    return Contents((*before, _look(tensor, chunks)))


def counts(value: int) -> Counts:
    """The digits of a value: how often each rank's data is in it."""
    digits = []
    while value > 0:
        value, digit = divmod(value, BASE)
        digits.append(digit)
    return tuple(digits)


def _look(tensor: Tensor, chunks: int) -> tuple[Counts | None, ...]:
    found = []
    for chunk in tensor.view(-1).tensor_split(chunks):
        low, high = (int(chunk.min()), int(chunk.max())) if chunk.numel() else (0, 0)
        found.append(counts(low) if low == high else None)
    return tuple(found)

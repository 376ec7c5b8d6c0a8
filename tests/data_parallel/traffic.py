"""What training sends, and nothing else: steps without a look at losses or parameters, and their traces."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.trace import Event, Op, Trace

from .conftest import in_group, members
from .training import Case

REDUCTIONS = (Op.REDUCE_SCATTER, Op.ALL_TO_ALL)
"""Of sums of which each rank gets a shard: made by the network, or of what all have sent to each."""
GATHERS = (Op.ALL_GATHER, Op.SEND)
"""Of shards: made by the network, or of a message to each other rank."""


def bare(group: ProcessGroup, cases: Sequence[Case]) -> None:
    """Train without an optimizer: one case after the other, with a barrier after each."""
    for case in cases:
        steps(group, case)
        dist.barrier(group)


def steps(group: ProcessGroup, case: Case, mark_micro_batches: bool = False) -> None:
    """Every step of `case`; with a barrier after each micro-batch, if that is wished for."""
    precision, last = PRECISIONS[case.precision], case.micro_batches - 1
    parts = dist.get_world_size(group) * case.micro_batches
    model = case.task.model(precision.master)
    form = case.make(model, group, precision=precision)
    for step in range(case.steps):
        for k in range(case.micro_batches):
            with form.micro_batch(last=k == last):
                case.task.loss(model, step, dist.get_rank(group) * case.micro_batches + k, parts).backward()
            if mark_micro_batches:
                dist.barrier(group)
        form.reduce_gradients()
        form.end_step()


def cut(trace: Trace) -> list[Trace]:
    """The traces of what lies between the barriers."""
    parts = [between(events) for events in trace.events]
    count = max(map(len, parts))
    return [Trace(trace.world_size, tuple(part[i] if part else () for part in parts)) for i in range(count)]


def between(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """The events before each barrier, back to the one before it."""
    at = [-1, *(i for i, event in enumerate(events) if event.op is Op.BARRIER)]
    return [tuple(events[begin + 1 : end]) for begin, end in pairwise(at)]


class Traffic(NamedTuple):
    """What a training has sent."""

    collectives: int  # that each rank has called
    messages: list[int]  # that each rank has sent, outside of these
    bytes: list[int]  # that each rank has sent


def sent(ranks: Cluster, n: int, cases: Sequence[Case]) -> dict[str, Traffic]:
    """What n ranks send, by case."""
    _, trace = ranks.trace(in_group, n, bare, cases)
    return {str(case): traffic for case, traffic in zip(cases, by_case(trace, n), strict=True)}


def by_case(trace: Trace, n: int) -> list[Traffic]:
    """What n ranks have sent for each case of `bare`."""
    parts = cut(trace)
    assert not any(part.unmatched for part in parts)
    calls = [{sum(not e.op.point_to_point for e in part.events[rank]) for rank in members(n)} for part in parts]
    sends = [[sum(e.op is Op.SEND for e in part.events[rank]) for rank in members(n)] for part in parts]
    return [
        Traffic(one, messages, [part.bytes_sent[rank] for rank in members(n)])
        for part, [one], messages in zip(parts, calls, sends, strict=True)
    ]

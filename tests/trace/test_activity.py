"""What a rank does when: modules compute one after another, collectives are under way meanwhile."""

import itertools
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.trace.activity import Activity, Doing, Watch, from_zero
from reference.trace.contents import observe

Clusters = Callable[..., Cluster]


def two_layers() -> list[Activity]:
    """Forward and backward of two layers, an all-reduce that is waited for later, and an optimizer's step."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = Watch({"first": model[0], "second": model[1]})
    with watch.recording():
        loss = model(torch.ones(2, 4)).sum()
        work = dist.all_reduce(torch.ones(5), async_op=True)
        until = time.monotonic() + 10
        while not watch.activities[2:] and time.monotonic() < until:  # two forwards; the third is the collective
            time.sleep(0.001)
        watch.backward(loss)
        with watch.span(Doing.OPTIMIZER, "step"):
            work.wait()
    return watch.activities


def test_each_module_computes_once_forward_and_once_backward(clusters: Clusters):
    for own in clusters(2).trace(two_layers)[0]:
        computing = sorted((a for a in own if a.doing is not Doing.COMMUNICATION), key=lambda a: a.begin)
        assert [(a.doing, a.label) for a in computing] == [
            (Doing.FORWARD, "first"),
            (Doing.FORWARD, "second"),
            (Doing.BACKWARD, "second"),
            (Doing.BACKWARD, "first"),
            (Doing.OPTIMIZER, "step"),
        ]
        assert all(a.end <= b.begin for a, b in itertools.pairwise(computing))


def test_a_collective_ends_when_it_is_done_not_when_it_is_waited_for(clusters: Clusters):
    for own in clusters(2).trace(two_layers)[0]:
        (talk,) = [a for a in own if a.doing is Doing.COMMUNICATION]
        (step,) = [a for a in own if a.doing is Doing.OPTIMIZER]
        assert talk.label == "all_reduce" and talk.bytes == 20
        assert talk.end < step.begin


def nobody_waits() -> list[Activity]:
    """A collective whose request is dropped, and nothing after it."""
    watch = Watch({})
    with watch.recording():
        dist.all_reduce(torch.ones(250_000), async_op=True)
    return watch.activities


def test_a_collective_is_noted_though_nobody_waits_for_it(clusters: Clusters):
    for own in clusters(2).trace(nobody_waits)[0]:
        assert [(a.doing, a.bytes) for a in own] == [(Doing.COMMUNICATION, 1_000_000)]


def around_the_ring() -> list[Activity]:
    """Many small messages, each of which is waited for: two waiting for one would be one too many."""
    rank, n = dist.get_rank(), dist.get_world_size()
    watch = Watch({})
    with watch.recording():
        for _ in range(20):
            arrival = dist.irecv(torch.empty(5), (rank - 1) % n)
            departure = dist.isend(torch.ones(5), (rank + 1) % n)
            for request in (arrival, departure):
                request.wait()
    return watch.activities


def test_messages_between_two_are_noted_until_they_are_waited_for(clusters: Clusters):
    for own in clusters(3).trace(around_the_ring)[0]:
        assert sorted(a.label for a in own) == ["irecv"] * 20 + ["isend"] * 20
        assert all(a.doing is Doing.COMMUNICATION and a.begin <= a.end and a.bytes == 20 for a in own)


def test_two_runs_can_begin_at_zero():
    own = [Activity(Doing.BACKWARD, "b", 12.0, 13.5), Activity(Doing.FORWARD, "a", 10.0, 12.0)]
    assert [(a.label, a.begin, a.end) for a in from_zero(own)] == [("b", 2.0, 3.5), ("a", 0.0, 2.0)]


def waiting_between_layers() -> list[Activity]:
    """A foreign hook on what the first layer gives out waits on the way back, as FSDP does for a gather."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *given: given[-1].register_hook(lambda gradient: time.sleep(0.05)) and None)
    watch = Watch({"first": model[0], "second": model[1]})
    with watch.recording():
        watch.backward(model(torch.ones(2, 4)).sum())
    return watch.activities


def test_who_waits_for_others_does_not_compute(clusters: Clusters):
    for own in clusters(2).trace(waiting_between_layers)[0]:
        second, first = (a for a in own if a.doing is Doing.BACKWARD)
        assert second.label == "second" and first.label == "first"
        assert first.begin - second.end >= 0.05


def test_hooks_are_gone_afterwards(clusters: Clusters):
    def again() -> tuple[int, int]:
        model = nn.Linear(4, 4)
        watch = Watch({"only": model})
        with watch.recording():
            model(torch.ones(1, 4))
        before = len(watch.activities)
        model(torch.ones(1, 4))
        dist.barrier()
        return before, len(watch.activities)

    assert clusters(2).trace(again)[0] == [(1, 1), (1, 1)]


def test_where_nothing_records_it_says_what_would_work():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="on a rank of a Cluster"), Watch({}).recording():
            pass
        with pytest.raises(RuntimeError, match="on a rank of a Cluster"):
            observe(dist.barrier, torch.zeros(1, dtype=torch.int64), chunks=1)
    finally:
        dist.destroy_process_group()

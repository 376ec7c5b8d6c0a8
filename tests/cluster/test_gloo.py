"""Ranks of a cluster are ranks of gloo, watched or not: what torch has for gloo works, and what it lacks is said."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

from reference.cluster import Cluster, RankError


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "watched"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(2, watch=request.param, timeout=30) as cluster:
        yield cluster


def names() -> list[str]:
    from reference.trace.tap import Tap  # here: a class that goes by the name of torch's does not travel

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    subgroup, _ = dist.new_subgroups(2, backend="gloo")
    groups = [None, dist.new_group(), dist.new_group(backend="gloo"), dist.new_group(backend=dist.Backend("GLOO")),
              dist.new_group(backend="cpu:gloo"), subgroup, mesh.get_group("data")]  # fmt: skip
    assert all(isinstance(group or dist.group.WORLD, Tap) for group in groups)
    assert {dist.get_backend_config(group) for group in groups} == {str(c10d.BackendConfig(dist.Backend("gloo")))}
    assert {(group or dist.group.WORLD).name() for group in groups} == {"gloo"}
    for group in groups:
        dist.monitored_barrier(group)
    return [dist.get_backend(group) for group in groups]


def test_groups_are_called_gloo(cluster: Cluster) -> None:
    assert cluster.run(names) == [["gloo"] * 7] * 2


def monitored(all_ranks: bool) -> str:
    group = dist.new_group()
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.3), wait_all_ranks=all_ranks)
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_monitored_barrier_names_who_is_missing(all_ranks: bool) -> None:
    with Cluster(2, timeout=30) as cluster:
        said = cluster.run(monitored, all_ranks)[0]
    assert "1" in said and "monitoredBarrier" in said


def polled() -> float:
    peer, x = 1 - dist.get_rank(), torch.zeros(1000)
    receive, send = dist.irecv(x, src=peer), dist.isend(torch.ones(1000), dst=peer)
    while not (receive.is_completed() and send.is_completed()):
        pass
    assert receive.wait() and send.wait() and receive.is_completed()
    return x.sum().item()


def test_a_message_that_is_polled_completes(cluster: Cluster) -> None:
    assert cluster.run(polled) == [1000, 1000]
    _, trace = cluster.trace(polled)
    assert [event.completed is not None for events in trace.events for event in events] == [True] * 4


def waited_too_short() -> str:
    if dist.get_rank() == 0:
        request = dist.irecv(torch.zeros(1), src=1)
        assert not request.is_completed()
        try:
            request.wait(timedelta(seconds=0.1))
        except RuntimeError as error:
            said = str(error)
        dist.barrier()
        request.wait()
        return said
    dist.barrier()
    dist.send(torch.ones(1), dst=0)
    return ""


def test_a_polled_message_keeps_its_time_limit() -> None:
    with Cluster(2, timeout=30) as cluster:
        assert cluster.run(waited_too_short)[0] == "the message was not there within 0.1 s"


def future() -> None:
    dist.irecv(torch.zeros(1), src=1 - dist.get_rank()).get_future()


def gone(name: str) -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    getattr(dist, name)(*([torch.ones(2)] if name == "all_reduce" else []), group=group)


def test_a_message_has_no_future_and_that_is_said(cluster: Cluster) -> None:
    with pytest.raises(RankError, match=r"future on gloo|gives no future: on gloo a message completes in wait\(\)"):
        cluster.run(future)


@pytest.mark.parametrize("name", ["all_reduce", "barrier", "monitored_barrier"])
def test_a_destroyed_group_is_named(name: str, cluster: Cluster) -> None:
    with pytest.raises(RankError, match=r"the process group is gone: destroyed at \S*test_gloo.py:\d+"):
        cluster.run(gone, name)

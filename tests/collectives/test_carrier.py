"""Groups that carry messages for hand-made ones: what torch is told of them, and that it forgets them."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference import process_group
from reference.collectives import backend

CARRIER = "serves_both"


def serves_both(options, _=None) -> ProcessGroup:
    """A plain group of gloo that serves CPU and GPU, as that of NCCL serves GPUs: torch has to be told of it."""
    engine = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=timedelta(seconds=60))
    group = ProcessGroup(options.store, options.group_rank, options.group_size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, engine)
    return group


def sum_by_hand(carrier: str | None) -> tuple[list[float], int]:
    """The sum of ones on a hand-made group, and how many groups torch knows now."""
    if CARRIER.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(CARRIER, serves_both, extended_api=True, devices=["cpu", "cuda"])
    backend.register(carrier=carrier)
    x = torch.ones(2)
    dist.all_reduce(x, group=dist.new_group(backend=backend.NAME))
    return x.tolist(), len(dist.distributed_c10d._world.pg_map)


@pytest.mark.parametrize(("carrier", "groups"), [(CARRIER, 3), ("gloo", 2)])
def test_a_cluster_outlives_hand_made_groups(clusters, carrier: str, groups: int) -> None:
    """Call after call, each with the groups of its own: those of the call before are gone, carriers included."""
    cluster = clusters(2)
    cluster.run(dist.get_rank)
    before = cluster.pids
    for _ in range(3):
        assert cluster.run(sum_by_hand, carrier) == [([2.0, 2.0], groups)] * 2
    assert cluster.pids == before  # no rank was started again


class Engine:
    """ProcessGroupNCCL as far as `connect` uses it, over gloo."""

    class Options:
        def __init__(self) -> None:
            self._timeout = timedelta(minutes=10)

    def __new__(cls, store, rank, size, options):
        cls.asked.append(options._timeout)
        return dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=5))


@pytest.mark.parametrize(("given", "taken"), [(None, 90), (timedelta(seconds=7), 7)])
@pytest.mark.parametrize("kind", ["nccl", "gloo"])
def test_a_timeout_is_given_to_either_backend(given, taken: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Engine, "asked", asked, raising=False)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Engine, raising=False)
    options = SimpleNamespace(
        store=dist.HashStore(),
        group_rank=0,
        group_size=1,
        timeout=timedelta(seconds=90),
        global_ranks_in_group=[0],
        group_id="a",
    )
    group = process_group.connect(kind, options, given)
    if kind == "gloo":
        asked.append(group._get_backend(torch.device("cpu")).options._timeout)
    assert asked == [timedelta(seconds=taken)]


def test_an_older_torch_knows_the_names_of_today() -> None:
    """torch 2.11 and 2.12 are this one without the new names. Hints, answers and tests say `dist.all_gather_single`."""
    program = """
        import torch.distributed as dist
        gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
        del dist.all_gather_single, dist.reduce_scatter_single
        import reference.cluster.rank  # what every rank imports
        assert dist.all_gather_single is gather and dist.reduce_scatter_single is scatter
        from reference.collectives import compat
        assert compat.all_gather_single is gather and compat.reduce_scatter_single is scatter
    """
    root = Path(process_group.__file__).parents[1]
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def threads_of_groups(n: int) -> int:
    """Threads that look for messages, once there are `n` more groups."""
    for _ in range(n):
        dist.new_group()
    names = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    return names.count("gloo_tcp_loop")


def test_one_thread_looks_for_the_messages_of_all_groups(clusters) -> None:
    """A thread of each group would wake a hundred times a second: a hundred idle groups took 7 % of a core."""
    cluster = clusters(2)
    assert cluster.run(threads_of_groups, 20) == cluster.run(threads_of_groups, 0)


def sums_in_forks(folder: str) -> list[int]:
    """Two forks of a process that has a group make one of their own, as tests of torch's own do it."""
    process_group.connect("gloo", of_ranks(dist.HashStore(), 0, 1))
    forks = []
    for rank in range(2):
        forks.append(os.fork())
        if not forks[-1]:
            x = torch.ones(1)
            group = process_group.connect("gloo", of_ranks(dist.FileStore(f"{folder}/store", 2), rank, 2))
            group.allreduce([x]).wait()
            os._exit(int(x))
    return [os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]


def of_ranks(store: dist.Store, rank: int, size: int) -> SimpleNamespace:
    """What torch says of a new group."""
    return SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timedelta(seconds=20))


def test_a_fork_has_devices_of_its_own(clusters, tmp_path: Path) -> None:
    """A thread does not live on in a fork: a group there would wait for a device that nobody serves."""
    assert clusters(1).run(sums_in_forks, str(tmp_path)) == [[2, 2]]

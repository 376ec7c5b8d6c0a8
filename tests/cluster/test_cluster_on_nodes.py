"""`Cluster(4, nodes=2)`: ranks in networks of their own, which can be cut, mended, slowed down and killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster, ClusterError, Gone, Nodes, RankDied
from reference.cluster.nodes import link_rate
from reference.cluster.server import descendants
from reference.errors import BadInput

RATE = "200 Mb/s"
BYTES = 1 << 20
HERE = Path(__file__).parents[2]

available = Nodes.available()
pytestmark = pytest.mark.skipif(not available, reason=f"no nodes here: {available.why_not}")


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(4, nodes=2, link=RATE, timeout=60) as cluster:
        yield cluster


def place() -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    return {name: os.environ[name] for name in names}


def seconds_from_to(source: int, target: int) -> float:
    """Seconds from rank to rank of BYTES, as the target sees it."""
    x = torch.ones(BYTES // 4)
    for _ in range(2):  # the first makes the connection
        dist.barrier()
        began = time.monotonic()
        if dist.get_rank() == source:
            dist.send(x, target)
        elif dist.get_rank() == target:
            dist.recv(x, source)
    return time.monotonic() - began


def test_ranks_know_their_nodes(four: Cluster) -> None:
    assert [where["GROUP_RANK"] for where in four.run(place)] == ["0", "0", "1", "1"]
    assert four.run(place)[3] == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }


def test_the_link_has_its_rate_between_nodes_alone(four: Cluster, patience: float) -> None:
    on_paper = BYTES / link_rate(RATE)
    across = four.run(seconds_from_to, 0, 2)[2]
    assert 0.9 * on_paper < across < 1.5 * patience * on_paper
    four.slow(1, "50 Mb/s")
    try:
        assert four.run(seconds_from_to, 0, 2)[2] > 3 * on_paper
    finally:
        four.slow(1, RATE)


def test_neighbours_on_a_node_do_not_share_the_link(four: Cluster, patience: float) -> None:
    assert four.run(seconds_from_to, 0, 1)[1] < 0.5 * patience * BYTES / link_rate(RATE)


def test_a_cut_holds_a_call_up_until_it_is_mended(four: Cluster) -> None:
    four.run(dist.barrier)
    four.cut(1)
    threading.Timer(1.0, four.mend, [1]).start()
    began = time.monotonic()
    four.run(dist.barrier)
    assert time.monotonic() - began > 0.9


def test_a_node_dies_with_all_its_ranks_and_the_next_call_works(four: Cluster) -> None:
    four.run(dist.barrier)
    threading.Timer(0.3, four.kill, [1]).start()
    with pytest.raises(RankDied, match="SIGKILL"):
        four.run(time.sleep, 20)
    assert four.run(dist.get_rank) == [0, 1, 2, 3]


def wait_for_the_end_of_others() -> str:
    """Rank 2 or 3, on node 1, waits to be killed; the others find out."""
    if dist.get_rank() >= 2:
        time.sleep(60)
    try:
        dist.recv(torch.empty(1), src=2)
    except RuntimeError:
        return "noticed"
    return "heard"


def test_those_that_live_end_their_call(four: Cluster) -> None:
    four.run(dist.barrier)
    threading.Timer(0.5, four.kill, [1]).start()
    gone = Gone(-signal.SIGKILL)
    assert four.survive(wait_for_the_end_of_others) == ["noticed", "noticed", gone, gone]
    assert four.run(dist.get_rank) == [0, 1, 2, 3]


def end_the_world() -> int:
    dist.destroy_process_group()
    return os.getpid()


def test_a_call_that_survives_may_end_the_world(four: Cluster) -> None:
    before = four.survive(end_the_world)
    assert four.run(dist.get_world_size) == [4] * 4
    assert not set(before) & set(four.pids)


def test_calls_on_nodes_are_traced_and_watched() -> None:
    with Cluster(2, nodes=2, watch=True) as cluster:
        _, trace = cluster.trace(seconds_from_to, 0, 1)
    assert trace.bytes_sent[0] >= 2 * BYTES


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    program = "from reference.cluster import Cluster\nc = Cluster(2, nodes=2)\nprint(*c.ready(), flush=True)\ninput()"
    owner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert len(owner.stdout.readline().split()) == 2
    below = descendants(owner.pid)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while (left := [pid for pid in below if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("nodes", [0, 3, 5, -1, "2"])
def test_ranks_that_nodes_cannot_share_are_refused(nodes: object) -> None:
    with pytest.raises(BadInput, match=r"4 ranks can't be divided by"):
        Cluster(4, nodes=nodes)


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="no rate of a link"):
        Cluster(2, nodes=2, link="fast")


def test_untrusted_code_gets_no_nodes() -> None:
    with pytest.raises(ClusterError, match="code of their owner"):
        Cluster(2, nodes=2, untrusted=True)


def test_a_cluster_without_nodes_says_how_to_have_some() -> None:
    with Cluster(2) as cluster, pytest.raises(ClusterError, match=r"Cluster\(2, nodes=2\)"):
        cluster.cut(0)

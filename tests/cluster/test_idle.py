"""Ranks that are not called sleep, and are the same when they are called again."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster

from ..processes import gone, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Four ranks that have been called, and have slept for a moment."""
    with Cluster(4) as four:
        four.run(noted, "a")
        four.suspend_if_idle(0)
        asleep(four)
        yield four


def states(cluster: Cluster) -> set[str]:
    """What the ranks' processes do: T is stopped."""
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in cluster.pids}


def asleep(cluster: Cluster) -> None:
    """Wait until all ranks sleep."""
    wait_until(lambda: states(cluster) == {"T"}, 30)


def noted(word: str) -> str:
    """All words that this rank was ever told: in a new process it would know of no other."""
    os.environ["NOTED"] = os.environ.get("NOTED", "") + word
    return os.environ["NOTED"]


def total() -> float:
    x = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item()


def test_who_sleeps_takes_no_time(cluster: Cluster) -> None:
    def used() -> list[list[str]]:
        return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in cluster.pids]

    before = used()
    time.sleep(0.5)
    assert used() == before


def test_a_call_wakes_the_same_ranks(cluster: Cluster) -> None:
    pids = cluster.pids
    assert cluster.run(noted, "b") == ["ab"] * 4
    assert cluster.run(total) == [6.0] * 4
    assert cluster.pids == pids
    cluster.suspend_if_idle(0)
    asleep(cluster)
    assert cluster.run(noted, "c") == ["abc"] * 4


def test_a_rank_killed_in_its_sleep_is_replaced(cluster: Cluster) -> None:
    pids = cluster.pids
    os.kill(pids[2], signal.SIGKILL)
    wait_until(lambda: gone(pids[2:3]), 30)
    assert cluster.run(total) == [6.0] * 4
    assert not {*pids} & {*cluster.pids}


def test_sleepers_can_be_closed(cluster: Cluster) -> None:
    pids = cluster.pids
    cluster.close()
    assert gone(pids)


def test_sleepers_can_be_started_again(cluster: Cluster) -> None:
    cluster.restart()
    assert cluster.run(noted, "b") == ["b"] * 4


def test_who_is_not_called_for_a_while_falls_asleep() -> None:
    with Cluster(2) as two:
        two.run(total)
        assert states(two) != {"T"}
        asleep(two)
        assert two.run(total) == [1.0] * 2
        assert states(two) != {"T"}


def at_work(sign: Path) -> None:
    sign.touch()
    time.sleep(1)


def test_ranks_that_work_do_not_sleep(tmp_path: Path) -> None:
    sign = tmp_path / "at work"
    with Cluster(2) as two, ThreadPoolExecutor(1) as thread:
        call = thread.submit(two.run, at_work, sign)
        while not call.done():
            if sign.exists():
                two.suspend_if_idle(0)
                assert "T" not in states(two)
            time.sleep(0.05)


def test_ranks_may_sleep_before_they_have_come_up() -> None:
    for seconds in (0, 0.01, 0.03, 0.1):
        with Cluster(4) as four:
            time.sleep(seconds)
            four.suspend_if_idle(0)
            time.sleep(0.1)
            assert four.run(total) == [6.0] * 4

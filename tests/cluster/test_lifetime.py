"""No process outlives its owner; what is killed comes back; none takes what is another's."""

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster, ClusterError, Interrupted, RankDied, RankError, forkserver
from reference.cluster.server import kill

from ..processes import gone, wait_until

pytestmark = pytest.mark.alone

MARK = "RANKWISE_TEST_OWNER"
LOOK = 0.02  # seconds between two looks for descendants


def rank() -> int:
    return dist.get_rank()


class Owner:
    """A process that owns a cluster, and whose descendants can be found: they inherit a mark."""

    def __init__(self, program: str) -> None:
        self.mark = uuid.uuid4().hex
        self.others = set(os.listdir("/proc"))  # that were there before, and so are none of its descendants
        environment = os.environ | {MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path)}
        source = textwrap.dedent(program)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def says(self, word: str) -> None:
        """Wait until it has printed a line."""
        for line in self.process.stdout:
            if line.strip() == word.encode():
                return
        raise AssertionError(f"the owner ended without a {word!r}")

    def alive(self) -> list[int]:
        """Its descendants, and itself, as far as they live."""
        wanted, found = f"{MARK}={self.mark}".encode(), []
        for name in set(os.listdir("/proc")) - self.others:
            with contextlib.suppress(OSError):
                process = Path("/proc", name)
                if wanted in (process / "environ").read_bytes() and " Z " not in (process / "stat").read_text():
                    found.append(int(name))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def seconds_to_silence(self, limit: float = 10) -> float:
        """How long after now the last of its descendants is gone."""
        begin = time.monotonic()
        for _ in range(int(limit / LOOK)):  # not by a clock: where the whole machine stands still, so do they
            if not self.alive():
                return time.monotonic() - begin
            time.sleep(LOOK)
        left = {pid: doing(pid) for pid in self.alive()}
        for pid in left:  # it would slow down whatever is tested next
            kill(pid)
        raise AssertionError(f"alive after {time.monotonic() - begin:.1f} s: {left}")


def doing(pid: int) -> str:
    """What a process is, whose child, in which state, and where in the kernel: for the message of a test."""
    process = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        return f"{command[-60:]!r} of {parent}, {state} in {(process / 'wchan').read_text()}"
    return "gone by now"


START = """
    import os, signal, subprocess, sys, threading, time
    from reference.cluster import Cluster
    def say(word): print(word, flush=True)
"""

INSTANTS = {
    "while the server imports torch": "c = Cluster(4); say('now'); time.sleep(9)",
    "while ranks come up": """
        from reference.cluster import forkserver
        Cluster(1).run(int)
        c = Cluster(8); say('now'); time.sleep(9)
    """,
    "in a call that holds the interpreter": "c = Cluster(4); c.run(int); say('now'); c.run(sum, range(10**12))",
    "in a call that ignores signals": """
        def ignore():
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
            time.sleep(99)
        c = Cluster(4); c.run(int); say('now'); c.run(ignore)
    """,
    "in a call with detached children": """
        def detach():
            subprocess.run(['sh', '-c', 'setsid sleep 99 & nohup sleep 99 >/dev/null &'])
            time.sleep(99)
        c = Cluster(4); c.run(int); say('now'); c.run(detach)
    """,
    "while ranks sleep": """
        c = Cluster(4); c.run(int); c.suspend_if_idle(0); say('now'); time.sleep(9)
    """,
    "in a transfer": """
        big = bytearray(64 << 20)
        c = Cluster(4); c.run(int); say('now')
        while True: c.run(bytes, big)
    """,
    "while healing": """
        c = Cluster(8); c.run(int); say('now')
        while True:
            try: c.run(int, 'not a number')
            except Exception: pass
    """,
    "with a cluster of a thread that has ended": """
        t = threading.Thread(target=lambda: globals().update(c=Cluster(4))); t.start(); t.join()
        c.run(int); say('now'); time.sleep(9)
    """,
    "with a fork of its own": """
        c = Cluster(4); c.run(int)
        if os.fork() == 0:
            os.environ.clear(); os.execvpe('sleep', ['sleep', '3'], {})
        say('now'); time.sleep(9)
    """,
}


ANY_INSTANT = """
    c = Cluster(4); say('now')
    while True:
        c.run(bytes, bytearray(8 << 20))
        try: c.run(os._exit, 1)
        except Exception: pass
"""


ANY = 2  # owners that are killed at any instant


def silence_after_kill(program: str) -> float:
    """Start an owner, kill it soon after it has said `now`. Seconds until nothing of it is left."""
    owner = Owner(START + textwrap.indent(textwrap.dedent(program), "    "))
    owner.says("now")
    time.sleep(random.uniform(0, 2.0 if program == ANY_INSTANT else 0.2))
    owner.kill()
    return owner.seconds_to_silence()


@pytest.fixture(scope="module")
def silences() -> dict[str, Future[float]]:
    """What `silence_after_kill` gave for each program, three at a time."""
    programs = INSTANTS | {f"at any instant, {number}": ANY_INSTANT for number in range(ANY)}
    with ThreadPoolExecutor(3) as pool:
        return {instant: pool.submit(silence_after_kill, program) for instant, program in programs.items()}


@pytest.mark.parametrize("instant", [*INSTANTS, *(f"at any instant, {number}" for number in range(ANY))])
def test_no_process_outlives_a_killed_owner(silences, instant, patience):
    assert silences[instant].result() < 1.0 * patience


@pytest.mark.parametrize("hangup", ["SIG_DFL", "SIG_IGN"])
def test_the_server_ends_with_its_owner_amid_the_load_of_a_library(hangup, tmp_path, patience):
    """Which no handler of Python's interrupts; here a sum stands for it. Under `nohup`, a hangup is ignored."""
    (tmp_path / "torch.py").write_text("open(__file__ + '.begun', 'w').close()\nsum(range(10**12))\n")
    signals = f"signal.signal(signal.SIGHUP, signal.{hangup})"
    path = f"sys.path.insert(0, {str(tmp_path)!r})"
    owner = Owner(START + f"    {signals}; {path}; c = Cluster(2); say('now'); time.sleep(99)")
    owner.says("now")
    wait_until((tmp_path / "torch.py.begun").exists)
    owner.kill()
    assert owner.seconds_to_silence() < 1.0 * patience


def test_an_owner_that_ends_without_closing_leaves_nothing(patience):
    owner = Owner(START + "    c = Cluster(4); print(c.run(int)); say('now')")
    owner.says("now")
    assert owner.process.wait(10) == 0
    assert owner.seconds_to_silence() < 1.0 * patience


def test_close_leaves_no_process_and_no_file_descriptor():
    Cluster(1).close()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    cluster = Cluster(4)
    cluster.run(rank)
    pids = cluster.pids
    cluster.close()
    cluster.close()
    assert len(pids) == 4
    assert gone(pids)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ClusterError, match="closed"):
        cluster.run(rank)


def test_close_ends_the_call_of_another_thread_and_leaves_no_process():
    cluster = Cluster(2)
    cluster.run(rank)
    pids = cluster.pids
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(cluster.run, time.sleep, 30)
        time.sleep(0.2)
        cluster.close()
        with pytest.raises(ClusterError, match="was closed while it ran this call"):
            call.result()
    assert gone(pids)
    assert gone(cluster.pids)
    with pytest.raises(ClusterError, match="closed"):
        cluster.run(rank)


@pytest.mark.parametrize("use", [Cluster.restart, Cluster.__enter__])
def test_a_closed_cluster_stays_closed(use):
    cluster = Cluster(1)
    cluster.run(rank)
    pids = cluster.pids
    cluster.close()
    with pytest.raises(ClusterError, match="the cluster is closed"):
        use(cluster)
    assert cluster.pids == pids
    assert gone(pids)


def test_a_cluster_that_is_forgotten_ends():
    cluster = Cluster(2)
    cluster.run(rank)
    pids = cluster.pids
    del cluster
    with pytest.warns(ResourceWarning):
        gc.collect()
    wait_until(lambda: gone(pids))


def test_close_ends_a_start():
    Cluster(8).close()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_between_calls_is_replaced(clusters, victim):
    cluster = clusters(3)
    cluster.run(rank)
    pid = cluster.pids[victim]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone([pid]))
    assert cluster.run(rank) == [0, 1, 2]


def kill_server() -> None:
    server = forkserver.shared()
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive)


def test_a_server_killed_between_calls_is_replaced():
    with Cluster(2) as cluster:
        cluster.run(rank)
        kill_server()
        assert cluster.run(rank) == [0, 1]
        cluster.restart()
        kill_server()  # while the ranks come up
        assert cluster.run(rank) == [0, 1]


def test_ranks_that_greeted_and_died_unheard_are_replaced():
    with Cluster(2) as cluster:
        cluster.run(rank)
        cluster.restart()
        time.sleep(0.5)
        kill_server()
        assert cluster.run(rank) == [0, 1]


def test_a_server_killed_in_a_call_is_one_clear_error():
    with Cluster(2) as cluster:
        cluster.run(rank)
        pid = forkserver.shared().pid
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(RankDied, match="the process that forks the ranks is gone"):
            cluster.run(time.sleep, 30)
        assert cluster.run(rank) == [0, 1]


def test_a_rank_killed_in_a_call_is_one_clear_error(clusters):
    cluster = clusters(2)
    cluster.run(rank)
    threading.Timer(0.1, os.kill, (cluster.pids[1], signal.SIGKILL)).start()
    with pytest.raises(RankDied) as caught:
        cluster.run(time.sleep, 30)
    assert caught.value.rank == 1
    assert cluster.run(rank) == [0, 1]


def test_an_interrupt_ends_the_call_and_the_next_one_works(clusters):
    cluster = clusters(2)
    cluster.run(rank)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(Interrupted) as caught:
            cluster.run(lambda: time.sleep(30))
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(caught.value, RankError)
    assert caught.value.file == __file__
    assert cluster.run(rank) == [0, 1]


def test_interrupts_at_any_instant_leave_a_cluster_that_works():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Cluster(4) as cluster:
            for _ in range(12):
                with contextlib.suppress(KeyboardInterrupt, RankError):
                    timer = threading.Timer(random.uniform(0, 0.2), os.kill, (os.getpid(), signal.SIGINT))
                    timer.start()
                    with contextlib.suppress(ValueError):
                        cluster.run(bytes, bytearray(1 << 20))
                        cluster.run(int, "not a number")
                    timer.join()
                with contextlib.suppress(KeyboardInterrupt):
                    timer.join()
            assert cluster.run(rank) == [0, 1, 2, 3]
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_clusters_in_two_threads():
    def work(n: int) -> None:
        with Cluster(n) as cluster:
            for _ in range(5):
                totals[n] = cluster.run(lambda: dist.all_reduce(x := torch.ones(1)) or x.item())
                with contextlib.suppress(RankError):
                    cluster.run(int, "not a number")

    totals: dict[int, list[float]] = {}
    threads = [threading.Thread(target=work, args=[n]) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == {2: [2.0] * 2, 3: [3.0] * 3}


def test_one_cluster_in_two_threads_is_refused(clusters):
    cluster = clusters(2)
    thread = threading.Thread(target=cluster.run, args=[time.sleep, 0.5])
    thread.start()
    time.sleep(0.2)
    with pytest.raises(ClusterError, match="running another call"):
        cluster.run(rank)
    with pytest.raises(ClusterError, match="running another call"):
        cluster.restart()
    thread.join()
    assert cluster.run(rank) == [0, 1]


def in_a_fork(do: Callable[[], Any]) -> Any:
    """What a function gives in a fork of this process."""
    ours, its = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            its.send(do())
        finally:
            os._exit(0)
    its.close()
    answer = ours.recv()
    os.waitpid(pid, 0)
    return answer


def test_a_fork_of_the_owner_can_neither_use_nor_end_its_cluster(clusters):
    cluster = clusters(2)
    cluster.run(rank)

    def misuse() -> str:
        try:
            cluster.run(rank)
        except ClusterError as error:
            cluster.close()
            return str(error)

    assert "belongs to the process that made it" in in_a_fork(misuse)
    assert cluster.run(rank) == [0, 1]


def test_a_fork_of_the_owner_may_have_a_cluster_of_its_own(clusters):
    clusters(2).run(rank)

    def use() -> list[int]:
        with Cluster(3) as cluster:
            return cluster.run(rank)

    assert in_a_fork(use) == [0, 1, 2]
    assert clusters(2).run(rank) == [0, 1]


@contextlib.contextmanager
def limit(what: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(what)
    resource.setrlimit(what, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def test_too_few_file_descriptors_is_one_clear_line_and_harms_nothing(clusters):
    clusters(2).run(rank)
    used = len(os.listdir("/proc/self/fd"))
    with limit(resource.RLIMIT_NOFILE, used + 20), pytest.raises(ClusterError, match="97 open files"):
        Cluster(32)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= used + 1
    assert clusters(2).run(rank) == [0, 1]

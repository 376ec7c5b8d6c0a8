"""Whatever a rank does, the call ends with one clear error, and the next call works."""

import _thread
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference.cluster import (
    Cluster,
    GroupError,
    OutputFlood,
    RankDied,
    RankError,
    RemoteException,
    ResultError,
    StrayProcess,
    TimeLimit,
)

SLEEP = f"sleep 3141.{os.getpid()}"  # the command line of every stray process of these tests


class TwoArguments(Exception):
    """Unpickles with difficulty."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Arrives:
    """Pickles, and fails where it arrives."""

    def __reduce__(self) -> tuple:
        return int, ("not a number",)


def exception() -> None:
    raise ValueError("wrong")  # here


def exception_with_its_own_constructor() -> None:
    raise TwoArguments(3, "wrong")  # here


def exception_without_words() -> None:
    raise Speechless  # here


def exception_group() -> None:
    raise ExceptionGroup("several", [ValueError("wrong"), KeyError("also")])  # here


def exception_in_torch() -> None:
    torch.ones(2) @ torch.ones(3)  # here


def exception_in_a_thread() -> None:
    def work() -> None:
        raise ValueError("wrong")  # here

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    dist.barrier()


def exception_in_a_fork() -> None:
    if os.fork() == 0:
        raise ValueError("wrong")  # here
    os.wait()


def endless_recursion() -> int:
    return endless_recursion() + 1  # here


def interrupt_of_its_own() -> None:
    raise KeyboardInterrupt  # here


def interrupted_main_thread() -> None:
    _thread.interrupt_main()
    time.sleep(5)


def leave_by_sys_exit() -> None:
    sys.exit(3)  # here


def leave_by_os_exit() -> None:
    os._exit(3)  # here


def leave_quietly() -> None:
    os._exit(0)  # here


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_oneself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # here


def segmentation_fault() -> None:
    ctypes.string_at(0)  # here


def abort() -> None:
    os.abort()  # here


def too_much_at_once() -> None:
    bytearray(1 << 62)  # here


def too_large_a_tensor() -> None:
    torch.empty(1 << 58)  # here


def memory_runs_out() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    pieces = []
    while True:
        pieces.append(bytearray(1 << 20))  # here


def ask() -> None:
    input("your name? ")  # here


def flood() -> None:
    while True:
        print("x" * 1000)  # here


def flood_without_lines() -> None:
    while True:
        os.write(1, b"x" * 1000)  # here


def leave_a_child() -> None:
    subprocess.Popen(SLEEP.split())  # here


def leave_a_fork() -> None:
    if os.fork() == 0:  # here
        time.sleep(100)


def leave_a_child_in_its_own_session() -> None:
    subprocess.Popen(["nohup", *SLEEP.split()], start_new_session=True)  # here


def leave_a_grandchild() -> None:
    subprocess.run(["sh", "-c", f"setsid {SLEEP} & disown 2>/dev/null; true"], check=True)  # here


def leave_a_daemon() -> None:
    became_sleep, closed_by_exec = os.pipe()
    if os.fork() == 0:  # here
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", SLEEP.split())
        os._exit(0)
    os.wait()
    os.close(closed_by_exec)
    os.read(became_sleep, 1)  # until then it is still a fork of the rank, and so named


def crash_with_children() -> None:
    for _ in range(3):
        subprocess.Popen(["sh", "-c", f"setsid {SLEEP} & {SLEEP}"])
    os._exit(1)  # here


def destroy_the_group() -> None:
    dist.destroy_process_group()  # here


def return_a_lock() -> Any:
    return threading.Lock()


def return_a_generator() -> Any:
    return (i for i in range(3))


def return_what_does_not_arrive() -> Any:
    return Arrives()


def speak_garbage() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), b"\xff" * 64)
    time.sleep(5)


def loop() -> None:
    while True:  # here
        pass  # here


def loop_that_holds_the_interpreter() -> None:
    sum(range(10**12))  # here


def sleep_that_holds_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(1000)  # here


def pattern_that_never_ends() -> None:
    re.match(r"(a+)+b", "a" * 60)  # here


def loop_that_ignores_signals() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True)
class Fault:
    """A thing to do on one rank, and the error it must give."""

    do: Callable[[], Any]
    error: type[RankError]
    kind: str
    says: str


FAULTS = [
    Fault(exception, RemoteException, "exception", "ValueError: wrong"),
    Fault(exception_with_its_own_constructor, RemoteException, "exception", "TwoArguments: 3: wrong"),
    Fault(exception_without_words, RemoteException, "exception", "Speechless"),
    Fault(
        exception_group, RemoteException, "exception", r"several \(2 sub-exceptions\)\s+ValueError: wrong\s+KeyError"
    ),
    Fault(exception_in_torch, RemoteException, "exception", "RuntimeError: inconsistent tensor size"),
    Fault(exception_in_a_thread, RemoteException, "exception", "ValueError: wrong"),
    Fault(exception_in_a_fork, RemoteException, "exception", "ValueError: wrong"),
    Fault(endless_recursion, RemoteException, "exception", "RecursionError"),
    Fault(interrupt_of_its_own, RemoteException, "exception", "KeyboardInterrupt"),
    Fault(interrupted_main_thread, RemoteException, "exception", "KeyboardInterrupt"),
    Fault(leave_by_sys_exit, RankDied, "sys.exit", r"sys.exit\(3\): left before finishing"),
    Fault(leave_by_os_exit, RankDied, "os._exit", r"os._exit\(3\): left before finishing"),
    Fault(leave_quietly, RankDied, "os._exit", r"os._exit\(0\): left before finishing"),
    Fault(kill_oneself, RankDied, "SIGKILL", "killed by SIGKILL"),
    Fault(end_oneself, RankDied, "SIGTERM", "ended by SIGTERM"),
    Fault(segmentation_fault, RankDied, "SIGSEGV", "crashed with SIGSEGV"),
    Fault(abort, RankDied, "SIGABRT", "aborted"),
    Fault(too_much_at_once, RemoteException, "out of memory", "MemoryError"),
    Fault(too_large_a_tensor, RemoteException, "out of memory", "allocate"),
    Fault(memory_runs_out, RemoteException, "out of memory", "MemoryError"),
    Fault(ask, RemoteException, "input", "a rank has no keyboard"),
    Fault(flood, OutputFlood, "output flood", "printed more than"),
    Fault(flood_without_lines, OutputFlood, "output flood", "printed more than"),
    Fault(leave_a_child, StrayProcess, "stray process", SLEEP),
    Fault(leave_a_fork, StrayProcess, "stray process", r"left 1 process\(es\) running: a fork of the rank"),
    Fault(leave_a_child_in_its_own_session, StrayProcess, "stray process", SLEEP),
    Fault(leave_a_grandchild, StrayProcess, "stray process", SLEEP),
    Fault(leave_a_daemon, StrayProcess, "stray process", SLEEP),
    Fault(crash_with_children, RankDied, "os._exit", "left before finishing"),
    Fault(destroy_the_group, GroupError, "group destroyed", "destroy_process_group"),
    Fault(return_a_lock, ResultError, "unpicklable result", "lock"),
    Fault(return_a_generator, ResultError, "unpicklable result", "generator"),
    Fault(speak_garbage, ResultError, "forged report", "a report that makes no sense"),
    Fault(return_what_does_not_arrive, ResultError, "unpicklable result", "does not arrive"),
]

ENDLESS = [
    Fault(loop, TimeLimit, "time limit", "still running after 0.4 s"),
    Fault(loop_that_holds_the_interpreter, TimeLimit, "time limit", "still running"),
    Fault(sleep_that_holds_the_interpreter, TimeLimit, "time limit", "still running"),
    Fault(pattern_that_never_ends, TimeLimit, "time limit", "still running"),
    Fault(loop_that_ignores_signals, TimeLimit, "time limit", "still running"),
    Fault(stop_oneself, TimeLimit, "time limit", "still running"),
]

PLACES = [(1, 0), (2, 1), (8, 3)]  # world size, the rank that does it


def on(victim: int, do: Callable[[], Any]) -> Any:
    """Do something on one rank, while the others wait for it."""
    return do() if dist.get_rank() == victim else dist.barrier()


def lines_of(do: Callable[..., Any]) -> range:
    """The lines of this file that belong to a function."""
    last = max(line for *_, line in do.__code__.co_lines() if line)
    for constant in do.__code__.co_consts:
        if hasattr(constant, "co_lines"):
            last = max(last, *(line for *_, line in constant.co_lines() if line))
    return range(do.__code__.co_firstlineno, last + 1)


def marked(do: Callable[..., Any]) -> list[int]:
    """Its lines that say `# here`."""
    source = Path(__file__).read_text().splitlines()
    return [line for line in lines_of(do) if source[line - 1].endswith("# here")]


def strays() -> list[str]:
    """What is left of the processes that faults have started."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if command == SLEEP:
            found.append(str(process))
    return found


def check(cluster: Cluster, fault: Fault, victim: int) -> None:
    """The call ends with the error of the fault; afterwards all is as before."""
    with pytest.raises(RankError) as caught:
        cluster.run(on, victim, fault.do)
    error, text = caught.value, str(caught.value)
    assert type(error) is fault.error, text
    assert error.kind == fault.kind
    assert error.rank == victim, text
    assert re.search(fault.says, text), text
    assert len(text.splitlines()) <= 6
    assert not re.search(r"site-packages|torch/|lib/python|reference/cluster", text), text
    assert error.file == __file__
    assert error.line in (marked(fault.do) or [*lines_of(fault.do), *lines_of(on)]), text
    assert cluster.run(dist.get_rank) == list(range(cluster.world_size))
    assert not strays()


@pytest.fixture(scope="module")
def limited() -> Iterator[Callable[[int], Cluster]]:
    """Clusters with a short time limit."""
    made: dict[int, Cluster] = {}

    def limited_to(n: int) -> Cluster:
        if n not in made:
            made[n] = Cluster(n, timeout=0.4)
        return made[n]

    yield limited_to
    for cluster in made.values():
        cluster.close()


@pytest.mark.parametrize(("world_size", "victim"), PLACES, ids=lambda n: str(n))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.do.__name__)
def test_a_fault_ends_the_call_and_the_next_one_works(clusters, fault, world_size, victim):
    check(clusters(world_size), fault, victim)


@pytest.mark.parametrize("victim", [0, 4, 7])
def test_a_fault_is_found_on_any_rank(clusters, victim):
    check(clusters(8), FAULTS[0], victim)


def test_an_import_that_takes_too_long_is_named(limited, tmp_path):
    """The first backward of a framework may import half of it."""
    packages = tmp_path / "site-packages"
    (packages / "slow").mkdir(parents=True)
    (packages / "slow" / "__init__.py").write_text("import slow.part\n")
    (packages / "slow" / "part.py").write_text("import time\ntime.sleep(100)\n")

    def imports():
        sys.path.insert(0, str(packages))
        importlib.import_module("slow")

    with pytest.raises(TimeLimit, match=r"it still imports slow: Cluster\(..., preload=\['slow'\]\) does so before"):
        limited(2).run(imports)


@pytest.mark.parametrize(("world_size", "victim"), [(1, 0), (2, 1)], ids=lambda n: str(n))
@pytest.mark.parametrize("fault", ENDLESS, ids=lambda fault: fault.do.__name__)
def test_what_never_ends_is_ended(limited, fault, world_size, victim):
    cluster = limited(world_size)
    cluster.run(dist.get_rank)  # a start is not the call's time
    check(cluster, fault, victim)


def test_when_all_ranks_fail_one_error_names_the_first(clusters):
    with pytest.raises(RemoteException) as caught:
        clusters(4).run(exception)
    assert caught.value.rank == 0


def test_those_who_wait_are_named(clusters):
    with pytest.raises(RemoteException, match=r"left waiting: ranks 0, 2 at \S*test_faults\.py:\d+ in barrier"):
        clusters(3).run(on, 1, exception)


def test_who_computes_is_not_said_to_wait(clusters):
    def program() -> None:
        dist.barrier()
        if dist.get_rank() == 2:
            while True:
                pass
        on(1, exception)

    with pytest.raises(RemoteException) as caught:
        clusters(3).run(program)
    where = r"\S*test_faults\.py:\d+"
    left = f"left waiting: rank 0 at {where} in barrier; not finished: rank 2 at {where}"
    assert re.fullmatch(left, caught.value.details[-1])


def test_those_who_only_notice_a_death_are_not_blamed(clusters):
    def wait() -> None:
        dist.recv(torch.empty(1), 3)

    with pytest.raises(RankDied) as caught:
        clusters(4).run(lambda: os._exit(1) if dist.get_rank() == 3 else wait())
    assert caught.value.rank == 3


def test_a_fault_without_a_line_of_the_caller_has_the_line_of_the_call(clusters):
    with pytest.raises(RankError) as caught:
        clusters(2).run(int, "not a number")
    assert caught.value.file == __file__
    assert "clusters(2).run(int" in Path(__file__).read_text().splitlines()[caught.value.line - 1]


def test_a_module_that_no_rank_has(clusters):
    def look() -> None:
        import no_such_module  # noqa: F401

    with pytest.raises(RemoteException, match="ModuleNotFoundError: No module named 'no_such_module'"):
        clusters(2).run(look)


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])  # from Python 3.14 on, forkserver where none is said
def test_workers_of_a_data_loader_are_no_strays(clusters, start):
    def load() -> int:
        loader = torch.utils.data.DataLoader(
            range(8), batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=start
        )
        return sum(batch.sum().item() for batch in loader)

    assert clusters(2).run(load) == [28, 28]


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_a_process_that_is_left_is_a_stray_however_it_was_started(clusters, start):
    def leave() -> None:
        multiprocessing.get_context(start).Process(target=time.sleep, args=(60,), daemon=True).start()

    with pytest.raises(StrayProcess, match="left 1 process"):
        clusters(2).run(leave)
    assert clusters(2).run(dist.get_rank) == [0, 1]


def test_children_that_are_waited_for_are_no_strays(clusters):
    assert clusters(2).run(lambda: subprocess.run(["true"]).returncode) == [0, 0]
    assert clusters(2).run(lambda: subprocess.Popen(["true"]).pid > 0) == [True, True]


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize(("leave", "status"), [(str, 0), (sys.exit, 0), (partial(sys.exit, 3), 3)])
def test_a_fork_ends_where_it_leaves_the_function(clusters, leave, status, watch):
    def fork() -> int:
        child = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else leave()

    assert clusters(2, watch=watch).run(fork) == [status, status]


def test_a_thread_that_stays_does_not_reach_the_next_call(clusters):
    cluster = clusters(2)
    cluster.run(lambda: threading.Thread(target=time.sleep, args=[100], daemon=True).start())
    assert cluster.run(threading.active_count) == [1, 1]


def test_a_long_message_keeps_its_beginning_and_its_end(clusters):
    def long() -> None:
        raise ValueError("\n".join(f"line {n} {'x' * 500}" for n in range(50)))

    with pytest.raises(RemoteException) as caught:
        clusters(2).run(on, 0, long)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) < 210
    assert "line 0" in lines[1]
    assert "left waiting: rank 1" in lines[-1]


def test_an_error_can_be_pickled(clusters):
    with pytest.raises(RemoteException) as caught:
        clusters(2).run(on, 1, exception)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.rank, copy.line) == (
        RemoteException, str(caught.value), 1, caught.value.line,
    )  # fmt: skip

"""What stops a text when no rule is read to it: the kernel's walls, and what owner and kernel see from outside.

The rules of `style` teach what a solution needs; they are not the wall. So here they are switched off, and each of
these texts, which does all that Python lets it do within its rank, must be refused all the same.
"""

import contextlib
import dataclasses
import re
import sys
import textwrap

import pytest

from puzzles import catalog
from puzzles.grading import engine, style, text
from puzzles.grading.pool import Pool
from puzzles.grading.puzzle import cases
from puzzles.grading.verdict import Stage
from reference.cluster import Cluster, EachRank, RankError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

SHIFT = catalog.find("ranks.ring_shift")
ONE = dataclasses.replace(SHIFT, cases=cases(worlds=(2,), length=(6,)), drawn=())
RIGHT = text.solution(SHIFT)
HEAD = "    rank, n = dist.get_rank(group), dist.get_world_size(group)\n"
END = "    return received\n"


@pytest.fixture(autouse=True)
def whose_ranks() -> None:
    """A learner's: new ones for each text."""


def program(*, top: str = "", inside: str = "", end: str = "") -> str:
    """The right solution with code before it, at the beginning of its function, or before it returns."""
    source = RIGHT.replace("import torch\n", "import torch\n" + textwrap.dedent(top), 1)
    source = source.replace(HEAD, HEAD + textwrap.indent(textwrap.dedent(inside), "    "))
    return source.replace(END, textwrap.indent(textwrap.dedent(end), "    ") + END)


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch):
    """Grades a text as if there were no rules."""
    monkeypatch.setattr(style, "inspect", lambda puzzle, tree: [])
    return lambda source, puzzle=ONE: engine.grade(puzzle, source, seed=1)


DATA = "import torch.distributed.distributed_c10d as c10d\nimport os, sys, socket, ctypes\n"
HIDE = "recorder = dist.group.WORLD.recorder\nkept = len(recorder.calls)\n{}\ndel recorder.calls[kept:]\n"
UNTOLD = "recorder = dist.group.WORLD.recorder\nrecorder.report = lambda *reports: None\n{}\ndel recorder.report\n"
SMALLER = """
recorder = dist.group.WORLD.recorder
tell = recorder.report

def told(*reports):
    for report in reports:
        if report["what"] == "post":
            report["event"] = [*report["event"][:6], 0, *report["event"][7:]]
    tell(*reports)

recorder.report = told
"""
GATHER = "dist.all_gather([torch.empty_like(x) for _ in range(n)], x, group=group)"
STORE = "store = c10d._get_default_store()\n"
KERNEL = r"the kernel counted [\d,]+ B between the ranks that the trace does not have"

HIDDEN = {
    "a native collective, taken out of the record": (
        program(end=HIDE.format(GATHER)),
        "rank 0 sent 48 B where 24 must do",  # the owner was told before it was made
    ),
    "a message more, taken out of the record": (
        program(end=HIDE.format("dist.barrier(group=group)")),
        "it takes 2 steps where 1 must do",
    ),
    "a collective of which the owner is not told": (program(end=UNTOLD.format(GATHER)), rf"{KERNEL}|makes no sense"),
    "calls that are told as smaller ones": (program(inside=SMALLER), r"kernel counted|nothing was sent|no rank sent"),
    "a collective of the group below the tap": (
        program(inside="if n > 1:\n    group.carrier.allreduce([x.clone()]).wait()\n"),
        KERNEL,
    ),
    "a collective below the tap, while the text is loaded": (
        program(top="import torch.distributed as dist\ndist.group.WORLD.carrier.allreduce([torch.ones(9)]).wait()\n"),
        KERNEL,
    ),
    "a collective while the text is loaded": (
        program(top="import torch.distributed as dist\ndist.all_reduce(torch.ones(9))\n"),
        r"line \d+ calls all_reduce outside of the function",
    ),
    "a group of its own": (
        program(inside=f"if n > 1:\n    mine = dist.new_group()\n    {GATHER.replace('=group', '=mine')}\n"),
        r"calls all_gather; allowed here|rank 0 sent 48 B where 24 must do",
    ),
    "words in the store": (program(top=DATA, inside=STORE + "store.set(f'{rank} {n}', str(x.tolist()))\n"), KERNEL),
    "words written over the store": (
        program(
            top=DATA,
            end="""
            for fd in range(3, 4096):  # where a process has had many clusters, the store is a late file
                try:
                    if 'memfd' in os.readlink(f'/proc/self/fd/{fd}'):
                        os.pwrite(fd, bytes(16), 0)
                except OSError:
                    pass
            """,
        ),
        KERNEL,
    ),
    "a clock of calls that is set back": (
        program(inside="dist.group.WORLD.recorder.tick -= 1000\n"),
        "a clock of calls that goes back: the code on this rank has set it",
    ),
    "datagrams": (
        program(
            top=DATA,
            inside="""
            if n > 1:
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                s.sendto(bytes(400), ('127.0.0.1', 9))
            """,
        ),
        rf"{KERNEL}|connections of its own",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_ranks_tell_each_other_beside_the_trace_is_named(name: str, verdict) -> None:
    source, reason = HIDDEN[name]
    said = verdict(source)
    assert not said.passed, name
    assert re.search(reason, said.reason), said.reason


TREE = dataclasses.replace(
    catalog.find("collectives.broadcast_tree"), cases=cases(worlds=(4,), length=(6,), root=(0,)), drawn=()
)
CHAIN = """
import torch.distributed as dist


def tree(x, root, group):
    rank, n, clock = dist.get_rank(group), dist.get_world_size(group), group.recorder
    if rank > 0:
        work, now = dist.irecv(x, group=group, group_src=rank - 1), clock.tick
        {}
        work.wait()
        {}
    if rank < n - 1:
        work = dist.isend(x, group=group, group_dst=rank + 1)
        {}
        work.wait()
"""
SET = ("clock.tick = now + 1000", "clock.tick = now if rank < n - 1 else clock.tick", "clock.tick += 2000")


def test_a_clock_that_is_set_forward_and_back_hides_no_step(verdict) -> None:
    """A message that was received after the next one was sent need not be waited for: so the trace would have it."""
    honest, forged = (verdict(CHAIN.format(*lines), TREE) for lines in (["pass"] * 3, SET))
    assert not honest.passed and "it takes 3 steps where 2 must do" in honest.reason
    assert not forged.passed and "a clock of calls that goes back" in forged.reason, forged.reason


def test_what_is_changed_in_the_record_of_a_call_once_it_is_made_changes_nothing(verdict) -> None:
    plain, changed = verdict(RIGHT), verdict(program(end="for work in works:\n    work._call.item_size = 0\n"))
    assert plain.passed and changed.passed
    assert changed.table == plain.table and changed.table[0].yours > 0


def test_a_right_solution_is_never_accused(verdict) -> None:
    puzzle = dataclasses.replace(catalog.find("ranks.take_turns"), drawn=())
    for _ in range(5):
        assert verdict(text.solution(puzzle), puzzle).passed


REACHES = {
    "a socket of Unix": "import socket\nsocket.socket(socket.AF_UNIX)",
    "a pair of sockets": "import socket\nsocket.socketpair()",
    "an abstract socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0x')",
    "a file in memory": "import os\nos.memfd_create('x')",
    "a program": (
        "import _posixsubprocess as p, os\nr, w = os.pipe()\n"
        "p.fork_exec([b'/bin/true'], [b'/bin/true'], True, (w,), None, None, -1, -1, -1, w, -1, -1, r, w, False, "
        f"False, -1, None, None, None, -1, None{', False' * (sys.version_info < (3, 14))})"
    ),
    "another process's limits": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "another process's cores": "import os\nos.sched_setaffinity(os.getppid(), [0])",
    "another process's scheduling": "import os\nos.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
    "another process's priority": "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 10)",
    "the course's answers": "import pkgutil\npkgutil.resolve_name('reference.ranks.plain:ring_shift')",
    "the course's cases": "import puzzles.catalog",
    "the catalogue's files": f"open({catalog.__file__!r}).read()",
    "a list of files": f"import os\nos.listdir({catalog.__path__[0]!r})",
    "a file of the system": "open('/etc/passwd').read()",
    "the environment of others": "import os\nopen(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "the memory of others": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "more files than a small directory holds": "open('/dev/shm/x', 'wb').write(bytes(20 << 20))",
    "a file elsewhere": "import os\nos.open('/tmp/rankwise-was-here', os.O_CREAT | os.O_WRONLY)",
    "another namespace": "import os\nos.setns(os.open('/proc/1/ns/net', 0))",
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", REACHES)
def test_what_is_around_a_rank_is_out_of_reach(name: str, verdict) -> None:
    top = f"exec({REACHES[name]!r})\n"
    said = verdict(program(top=top))
    assert said.stage is Stage.ERROR, f"{name}: {said.reason}"
    words = r"may not|not permitted|Permission denied|No module named|No space left|can't find|has no attribute"
    assert re.search(words, said.reason), said.reason


LEAVES = {
    "autocast": "torch.autocast('cpu').__enter__()",
    "no gradients": "torch.set_grad_enabled(False)",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "denormals": "torch.set_flush_denormal(True)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "print options": "torch.set_printoptions(precision=1)",
    "another class": "torch.nn.Linear.forward = lambda self, x: x",
    "another function of autograd": "torch.autograd.Function.apply = classmethod(lambda c, *a: a[0])",
    "another backend": "type(dist.group.WORLD).allreduce = lambda self, *a: self.barrier()",
    "few files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a lot of memory": "torch.kept = torch.ones(5_000_000)",
    "another trace function": "import sys\nsys.settrace = lambda function: None",
}
LOOKS = """
import resource, threading
clean = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and not torch.is_anomaly_enabled()
clean &= torch.get_float32_matmul_precision() == "highest" and not torch.are_deterministic_algorithms_enabled()
clean &= "5.0" not in str(torch.tensor(5.0)) and float(torch.tensor([1e-310], dtype=torch.float64) * 1) > 0
clean &= torch.nn.Linear(2, 3)(torch.ones(1, 2)).shape == (1, 3) and not hasattr(torch, "kept")
clean &= resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 5 and threading.active_count() <= 2
assert clean
"""


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", LEAVES)
def test_ranks_forget(name: str, verdict) -> None:
    verdict(program(top="import torch.distributed as dist\n" + LEAVES[name] + "\n"))
    after = verdict(program(top=LOOKS.replace('"5.0" not in', '"5." in')))
    assert after.passed, after.reason


def test_a_text_runs_on_ranks_that_have_run_no_other() -> None:
    pool = Pool()
    try:
        with pool.forgetting():
            before = pool.cluster(2).ready()
            assert pool.cluster(2).ready() == before  # one text may call them several times
        assert not set(pool.cluster(2).ready()) & set(before)
    finally:
        pool.close()


def test_ranks_that_have_run_nothing_stand_ready_beside_those_that_have() -> None:
    pool = Pool()
    try:
        pool.prepare([2], spare=[2])
        with pool.forgetting():
            used = pool.cluster(2)
            spare = pool.fresh(2)
            assert spare is not used and pool.cluster(2) is spare
            before = [used.ready(), spare.ready()]
            assert not set(pool.fresh(2).ready()) & {*before[0], *before[1]}  # both have run something
        assert not {*used.ready(), *spare.ready()} & {*before[0], *before[1]}
    finally:
        pool.close()


def _rank_and(value: object) -> object:
    return value


def test_each_rank_is_given_its_own(clusters) -> None:
    assert clusters(3).run(_rank_and, EachRank(["a", "b", "c"])) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="EachRank has one value for each rank: 3, not 2"):
        clusters(3).run(_rank_and, EachRank(["a", "b"]))


def _forge(call: int) -> None:
    import torch.distributed as dist

    from reference.cluster import wire

    channel = dist.group.WORLD.recorder._channel
    wire.send(channel._sock, wire.MessageKind.RESULT, call, b"\n" + b"N.")


def test_a_result_ahead_of_its_call_is_an_error() -> None:
    with Cluster(1, watch=True, untrusted=True) as cluster:
        with pytest.raises(RankError, match="a report too many: the code on this rank has made it up"):
            cluster.run(_forge, 2)
        assert cluster.run(_rank_and, 7) == [7]


def test_a_result_too_many_moves_no_later_call() -> None:
    with Cluster(1, watch=True, untrusted=True) as cluster:
        with contextlib.suppress(RankError):  # where the second one came in before the first was read
            assert cluster.run(_forge, 1) == [None]
        assert [cluster.run(_rank_and, value) for value in (7, 8)] == [[7], [8]]


def _claim(size: int) -> None:
    import torch.distributed as dist

    from reference.cluster import wire

    channel = dist.group.WORLD.recorder._channel
    channel._sock.sendall(wire._HEAD.pack(wire.MessageKind.RESULT, 1, size, 0))


def test_a_header_of_a_few_bytes_makes_nobody_find_room_for_gigabytes() -> None:
    with Cluster(1, watch=True, untrusted=True) as cluster:
        with pytest.raises(RankError):
            cluster.run(_claim, 1 << 32)
        assert cluster.run(_rank_and, 7) == [7]

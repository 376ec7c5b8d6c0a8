"""The kernel's walls around a rank, each by itself: the filter of system calls, namespaces, paths that can be read."""

import errno
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from reference.cluster import Cluster, seccomp
from reference.cluster.confine import _HOUSE, readable

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")
PROCESS = 4321
MACHINES = sorted(seccomp._MACHINES)
ALLOW, REFUSE, NONE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000


def answer(machine: str, call: str | int, *arguments: int, audit: int | None = None) -> int:
    """What the filter answers to a call: its program, run as the kernel runs it."""
    known = seccomp._MACHINES[machine]
    number = known.numbers[call] if isinstance(call, str) else call
    seen = {0: number, 4: known.audit if audit is None else audit}
    seen |= {16 + 8 * place: argument for place, argument in enumerate((*arguments, 0, 0, 0)[:6])}
    program, at, loaded = seccomp.filtered(PROCESS, known), 0, 0
    while True:
        code, true, false, operand = program[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            loaded = seen[operand]
        else:
            holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            at += true if holds else false


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("execve", (), REFUSE),
        ("clone", (0x11,), REFUSE),  # a process
        ("clone", (0x00010000 | 0x100,), ALLOW),  # a thread
        ("clone3", (), NONE),  # so that the C library takes clone
        ("kill", (PROCESS,), ALLOW),
        ("kill", (PROCESS + 1,), REFUSE),
        ("kill", (0,), REFUSE),  # all of the process group
        ("tgkill", (PROCESS,), ALLOW),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (PROCESS,), ALLOW),
        ("prlimit64", (1,), REFUSE),
        ("sched_setaffinity", (0,), ALLOW),
        ("sched_setaffinity", (7,), REFUSE),
        ("socket", (2, 1, 0), ALLOW),  # AF_INET
        ("socket", (1, 1, 0), REFUSE),  # AF_UNIX
        ("socket", (10, 1, 0), REFUSE),  # AF_INET6, which is not counted
        ("socket", (16, 3, 0), ALLOW),  # the C library asks for interfaces
        ("socket", (16, 3, 2), REFUSE),  # a way for processes to talk
        ("fcntl", (5, 1031), REFUSE),  # a larger pipe
        ("fcntl", (5, 3), ALLOW),
        ("prctl", (1, 0), REFUSE),  # to outlive one's parent
        ("prctl", (15, 0), ALLOW),
        ("memfd_create", (), REFUSE),
        ("io_uring_setup", (), REFUSE),
    ],
)
def test_the_filter_lets_through_what_computing_needs(machine: str, call: str, arguments, expected: int) -> None:
    assert answer(machine, call, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_no_call_goes_by_the_numbers_of_another_architecture(machine: str) -> None:
    assert answer(machine, "execve", audit=0x40000003) == KILL
    assert answer(machine, 0x40000000 | 59) == REFUSE  # x32
    assert answer(machine, 0xFFF) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_every_jump_of_the_filter_is_short_enough(machine: str) -> None:
    program = seccomp.filtered(PROCESS, seccomp._MACHINES[machine])
    assert len(program) < 4096 and all(max(step[1], step[2]) < 256 for step in program)


def test_ranks_of_untrusted_code_read_python_and_not_the_course() -> None:
    paths = [Path(path) for path in readable()]
    assert any(Path(sysconfig.get_paths()["stdlib"]).is_relative_to(path) for path in paths)
    assert not any(_HOUSE.is_relative_to(path) for path in paths)
    rooms = [_HOUSE / room for room in ("puzzles", "reference", "tests")]
    assert not any(path.is_relative_to(room) for path in paths for room in rooms)


@ON_LINUX
def test_ranks_of_one_generation_share_a_network_with_nobody_else() -> None:
    with Cluster(2, untrusted=True) as one, Cluster(2, untrusted=True) as other:
        of_one, of_other = ({os.readlink(f"/proc/{pid}/ns/net") for pid in each.ready()} for each in (one, other))
        assert one.apart and len(of_one) == len(of_other) == 1
        assert of_one != of_other and os.readlink("/proc/self/ns/net") not in of_one | of_other
    with Cluster(1) as trusted:
        assert not trusted.apart
        assert os.readlink(f"/proc/{trusted.ready()[0]}/ns/net") == os.readlink("/proc/self/ns/net")


def _leave_a_file() -> list[str]:
    before = os.listdir("/dev/shm")
    Path("/dev/shm/rankwise-left").write_text("here")
    return before


@ON_LINUX
def test_each_rank_has_a_directory_of_its_own_that_vanishes_with_it() -> None:
    with Cluster(2, untrusted=True) as cluster:
        assert cluster.run(_leave_a_file) == [[], []]
        assert cluster.run(_leave_a_file) == [["rankwise-left"]] * 2
        cluster.renew()
        assert cluster.run(_leave_a_file) == [[], []]
    assert not Path("/dev/shm/rankwise-left").exists()


@ON_LINUX
def test_a_machine_without_namespaces_is_told_and_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from puzzles import catalog
    from puzzles.grading import engine, text
    from puzzles.grading.pool import Pool

    pool = Pool()
    try:
        pool.cluster(2).ready()
        monkeypatch.setattr(Cluster, "apart", False)
        puzzle = catalog.find("ranks.swap")
        assert engine.grade(puzzle, text.solution(puzzle), pool=pool).passed
    finally:
        pool.close()

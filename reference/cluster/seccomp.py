"""Seccomp: a process gives up system calls, for good and with all its threads.

The filter is a program of the kernel's packet filter (BPF) that sees the number of a call and its arguments. It lets
through what computing and talking over loopback need, and answers EPERM to what starts programs, reaches into other
processes, or hides bytes where they are not counted: https://docs.kernel.org/userspace-api/seccomp_filter.html.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of classic BPF
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in what the filter sees
_THREAD = 0x00010000  # CLONE_THREAD
_INET, _NETLINK = 2, 16  # address families
_SET_PIPE_SIZE, _SET_DEATH_SIGNAL = 1031, 1  # of fcntl, of prctl


@dataclass(frozen=True)
class _Machine:
    """How an architecture numbers its calls."""

    audit: int
    seccomp: int
    numbers: dict[str, int]


_SHARED = {  # calls that are as young as their common numbers
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, _SHARED | {
        "execve": 59, "execveat": 322, "fork": 57, "vfork": 58, "clone": 56, "ptrace": 101, "process_vm_readv": 310,
        "process_vm_writev": 311, "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "prlimit64": 302, "setpriority": 141, "sched_setaffinity": 203,
        "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314, "ioprio_set": 251, "setns": 308,
        "unshare": 272, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "memfd_create": 319,
        "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "socket": 41, "socketpair": 53,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
        "splice": 275, "vmsplice": 278, "tee": 276, "personality": 135, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "kcmp": 312, "fcntl": 72, "prctl": 157,
    }),
    "aarch64": _Machine(0xC00000B7, 277, _SHARED | {
        "execve": 221, "execveat": 281, "clone": 220, "ptrace": 117, "process_vm_readv": 270,
        "process_vm_writev": 271, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "prlimit64": 261, "setpriority": 140, "sched_setaffinity": 122,
        "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274, "ioprio_set": 30, "setns": 268,
        "unshare": 97, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "memfd_create": 279,
        "shmget": 194, "shmat": 196, "msgget": 186, "semget": 190, "mq_open": 180, "socket": 198, "socketpair": 199,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218,
        "splice": 76, "vmsplice": 75, "tee": 77, "personality": 92, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "kcmp": 272, "fcntl": 25, "prctl": 167,
    }),
}  # fmt: skip

_OWN = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "prlimit64", "sched_setaffinity",
        "sched_setscheduler", "sched_setparam", "sched_setattr")  # fmt: skip
"""Calls whose first argument is a process: it may be this one."""

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def filtered(process: int, machine: _Machine) -> list[Instruction]:
    """The program, for a process of this id."""
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),  # a call by the numbers of another architecture
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # the same, of x32
        _refused(errno.EPERM),
    ]
    for name, number in machine.numbers.items():
        judged = list(_judged(name, process))
        program += [(_EQUAL, 0, len(judged), number), *judged]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _judged(name: str, process: int) -> Iterator[Instruction]:
    """What becomes of a call, once its number is known."""
    if name == "clone3":  # its flags are out of sight; without it the C library takes clone
        yield _refused(errno.ENOSYS)
    elif name == "clone":
        yield from _if(_argument(0), (_ANY_BIT, _THREAD), then=_ALLOW)
    elif name == "socket":
        yield from _if(_argument(0), (_EQUAL, _INET), then=_ALLOW)
        yield from _unless_both((0, _NETLINK), (2, 0))  # the C library asks the kernel for its interfaces
    elif name in _OWN:
        yield from _if(_argument(0), (_EQUAL, process), then=_ALLOW)
        if not name.startswith(("kill", "tgkill", "rt_")):
            yield from _if(_argument(0), (_EQUAL, 0), then=_ALLOW)  # 0 is this thread; of kill it is many processes
    elif name in ("fcntl", "prctl"):
        position, value = (1, _SET_PIPE_SIZE) if name == "fcntl" else (0, _SET_DEATH_SIGNAL)
        yield from _if(_argument(position), (_EQUAL, value), then=_ERRNO | errno.EPERM)
        yield (_RETURN, 0, 0, _ALLOW)
        return
    yield _refused(errno.EPERM)


def _argument(position: int) -> Instruction:
    """Load the low half of an argument, on a little-endian machine."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * position)


def _refused(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _if(load: Instruction, test: tuple[int, int], *, then: int) -> Iterator[Instruction]:
    """Return `then` where what is loaded passes the test."""
    code, operand = test
    yield from (load, (code, 0, 1, operand), (_RETURN, 0, 0, then))


def _unless_both(*wanted: tuple[int, int]) -> Iterator[Instruction]:
    """Allow the call where every (argument, value) holds; continue otherwise."""
    left = 2 * len(wanted) + 1  # instructions until the end of this test
    for position, value in wanted:
        left -= 2
        yield _argument(position)
        yield (_EQUAL, 0, left, value)
    yield (_RETURN, 0, 0, _ALLOW)


def restrict() -> bool:
    """Confine this process and all its threads. False where the kernel, or we, can't."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    program = filtered(os.getpid(), machine)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return libc.syscall(machine.seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_ALL_THREADS), header) == 0

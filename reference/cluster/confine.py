"""Confine a rank that runs code one does not trust: it may compute and communicate, and touch nothing else.

The walls, from the outermost inwards:

| wall         | it stops                                                                                         |
|--------------|--------------------------------------------------------------------------------------------------|
| `namespaces` | messages to all but the ranks of the call; files beyond a small directory                        |
| `landlock`   | reads of anything but Python, its packages and the system's libraries; writes outside            |
| `seccomp`    | programs; other processes' limits, priorities and memory; sockets of other kinds; shared memory  |
| limits       | more memory than `MEMORY`                                                                        |
| audit hooks  | the same and more, within Python, and they say at which line it was tried (PEP 578)              |

The kernel keeps all but the last, whatever the code does to its own process. Where it can't, `confine` says what is
missing. A hook can't be removed once it is there, and the text of a learner is told by it; it is no wall by itself.
"""

import errno
import os
import resource
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from . import landlock, namespaces, seccomp

MEMORY = 8 << 30  # bytes of data of one rank

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PASSES_OVER = ("linecache.py", "tokenize.py", os.path.join("importlib", "metadata", "__init__.py"))
_HOUSE = Path(__file__).resolve().parents[2]
_ROOMS = ("reference", "puzzles", "visualizations", "rankwise", "lessons", "tests")
_PACKAGES = ("site-packages", "dist-packages")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime",
           "/usr/share/zoneinfo", "/dev/urandom", "/dev/zero", "/sys/devices/system/cpu", "/proc/cpuinfo")  # fmt: skip

_REFUSED = {
    "os.system": "start programs",
    "subprocess.Popen": "start programs",
    "os.exec": "start programs",
    "os.posix_spawn": "start programs",
    "os.spawn": "start programs",
    "os.fork": "start processes",
    "os.forkpty": "start processes",
    "os.kill": "send signals",
    "os.killpg": "send signals",
    "signal.pthread_kill": "send signals",
    "socket.connect": "open connections of its own",
    "socket.bind": "open connections of its own",
    "ctypes.dlopen": "call C functions",
    "ctypes.dlsym": "call C functions",
    "gc.get_objects": "search the interpreter's memory",
    "gc.get_referrers": "search the interpreter's memory",
    "sys.addaudithook": "watch the interpreter",
}
_CHANGED = {  # audit event: which of its arguments are paths of what it changes
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "os.removexattr": (0,),
    "os.rename": (0, 1),
    "os.link": (0, 1),  # two names of one file: to write to the new one is to write to the old one
    "os.symlink": (1,),
    "sqlite3.connect": (0,),
}


def confine(scratch: str, refuse: Callable[[str], Exception], *, alone: bool) -> list[str]:
    """Confine this process for good.

    Args:
        scratch: the one directory in which files may be written.
        refuse: makes the exception to raise where code reaches outside, of a sentence that says how it did.
        alone: whether this process is in namespaces of its generation's own.

    Returns: what is not enforced here, in words.
    """
    os.environ["TMPDIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
    sys.dont_write_bytecode = True  # it could not store what it compiles, and would be refused for trying to
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    allowed = readable()
    missing = {"Linux: only Python's own hooks guard it": True}
    if sys.platform == "linux":
        small = alone and namespaces.private_directory(scratch)
        namespaces.drop_capabilities()
        missing = {
            "a network of its own: hidden messages are not counted": not alone,
            "a small directory of its own": not small,
            "Landlock: files can be read": not landlock.restrict([scratch, os.devnull], allowed),
            "seccomp: programs can be started": not seccomp.restrict(),
        }
    sys.addaudithook(hook(scratch, refuse, allowed))
    return [wall for wall, lacks in missing.items() if lacks]


def readable() -> list[str]:
    """Where Python, its packages and the system's libraries are, and nothing of this course."""
    homes = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += [Path(sys.base_prefix) / "lib", *(Path(entry) for entry in sys.path if entry.endswith(_PACKAGES))]
    return [str(part) for home in dict.fromkeys([*map(Path, _SYSTEM), *homes]) for part in _without_course(home)]


def _without_course(home: Path) -> list[Path]:
    """A directory, or all that is in it but the rooms of this course, where these are installed below it."""
    if not _HOUSE.is_relative_to(home):
        return [home]
    if home == _HOUSE:
        return [part for part in home.iterdir() if part.name not in _ROOMS]
    return [each for part in home.iterdir() for each in _without_course(part)]


def hook(
    scratch: str, refuse: Callable[[str], Exception], readable: Sequence[str] = ("/",)
) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that refuses what reaches outside."""
    root = os.path.realpath(scratch) + os.sep
    roots = tuple({root, *(os.path.join(os.path.realpath(each), "") for each in readable)})

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            raise refuse(f"this code may not {_REFUSED[event]} ({event})")
        if event == "open":
            path, _, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if writes and not isinstance(path, int) and not inside(path, root):
                raise refuse(f"this code may not write files ({path!r})")
            if not isinstance(path, int) and not inside(path, roots):
                if _does_without(sys._getframe(1)):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)  # as the kernel says it
                raise refuse(f"this code may not read files ({path!r})")
        for position in _CHANGED.get(event, ()):
            if not inside(arguments[position], root):
                raise refuse(f"this code may not change files ({event} {arguments[position]!r})")

    return audit


def _does_without(frame: FrameType | None) -> bool:
    """Whether Python itself looks for a file, and continues where it may not read it.

    So it shows a traceback without the lines of a file, and looks through all packages for one, as torch has it do.
    """
    while frame and frame.f_code.co_filename.startswith(_LIBRARY):
        if frame.f_code.co_filename.endswith(_PASSES_OVER):
            return True
        frame = frame.f_back
    return False


def inside(path: Any, root: str | tuple[str, ...]) -> bool:
    """True for a path below `root`, or one of several, and for the null device."""
    real = os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return (real + os.sep).startswith(root) or real == os.devnull

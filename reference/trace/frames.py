"""Whose line is it? From the frames of a stack to the caller's own file and line."""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType

HOUSE = str(Path(__file__).resolve().parents[1]) + os.sep  # reference/
_MACHINERY = (*(HOUSE + room + os.sep for room in ("cluster", "trace")), HOUSE + "process_group.py")
_CARRIERS = HOUSE + "collectives" + os.sep
_GRADING = str(Path(__file__).resolve().parents[2] / "puzzles" / "grading") + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = {"site-packages", "dist-packages"}  # the second is Debian's name


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a call stack."""

    file: str
    line: int
    function: str


@lru_cache(maxsize=4096)
def machinery(file: str) -> bool:
    """True for the cluster, the tap and the grading: code that carries the caller's calls."""
    return file.startswith((*_MACHINERY, _GRADING))


@lru_cache(maxsize=4096)
def installed(file: str) -> bool:
    """True for a file of the standard library, or of a package that pip or the system has installed."""
    return file.startswith(_STDLIB) or not _PACKAGES.isdisjoint(Path(file).parts)


@lru_cache(maxsize=4096)
def foreign(file: str) -> bool:
    """True for code that no learner wrote: torch, the standard library, other packages, this machinery."""
    return (
        machinery(file)
        or installed(file)
        or file.startswith(("<frozen ", "<__array_function__"))
        or file in ("", "<string>")
    )


def callers(file: str) -> bool:
    """True for code of the caller's own: neither foreign nor of `reference/`."""
    return not foreign(file) and not file.startswith(HOUSE)


def own(frames: Iterable[Frame]) -> Frame:
    """The innermost frame of the caller's own code; of `reference/` where the caller has none.

    There, that of a strategy is asked for, and not that of the collective which carries what it says.

    Args:
        frames: innermost first.
    """
    strategy = carrier = None
    for frame in frames:
        if callers(frame.file):
            return frame
        if frame.file.startswith(_CARRIERS):
            carrier = carrier or frame
        elif not foreign(frame.file):
            strategy = strategy or frame
    return strategy or carrier or Frame("", 0, "")


def of_stack(frame: FrameType | None) -> Iterator[Frame]:
    """The frames of a running stack, innermost first."""
    while frame is not None:
        yield Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def own_stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The running frames of the caller's own code, innermost first."""
    while frame is not None:
        if not foreign(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def of_traceback(traceback: TracebackType | None) -> list[Frame]:
    """The frames of an exception, innermost first."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(Frame(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return frames[::-1]


_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_DUMP_BEGINS = re.compile(r"^.*(?<!C stack trace) \(most recent call first\):$", re.M)  # Python 3.14 adds a stack of C


def of_dump(text: str) -> list[Frame]:
    """The frames in what `faulthandler` wrote last, innermost first."""
    last = _DUMP_BEGINS.split(text)[-1]
    return [Frame(m[1], int(m[2]), m[3]) for m in map(_DUMPED.match, last.splitlines()) if m]


def display(file: str) -> str:
    """A name for people: `cell [3]` in a notebook, a path from here, or the bare name of a file elsewhere.

    On a rank it is just `cell`: only the notebook's own process knows which one has which file.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and file in (names := getattr(shell.compile, "_filename_map", {})):
        return f"cell [{names[file]}]"
    if Path(file).parent.name.startswith("ipykernel_"):
        return "cell"
    try:
        relative = Path(file).relative_to(Path.cwd())
    except (ValueError, OSError):  # it is elsewhere, or this folder has been removed
        return Path(file).name
    return str(relative) if len(relative.parts) <= 3 else relative.name

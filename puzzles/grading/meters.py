"""What a function costs besides messages: the tensors it keeps alive, and the lines it runs.

Both are counted, not timed, so that the same program gives the same numbers in every run.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from reference.memory.lab.storages import LiveBytes

from . import drives


class OwnBytes(LiveBytes):
    """The bytes of tensors that a function makes. Not those of what was given to it: `arguments`."""

    def __init__(self, arguments: Any) -> None:
        super().__init__(drives.all_tensors(arguments))

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def watching(file: str) -> bool:
        """What a drive gives to the function, and the function calls, is the caller's as much as what torch has."""
        return LiveBytes.watching(file) and not file.startswith(tuple(drives.__path__))


class Lines:
    """Counts the lines that are run in a file: whatever is called, be it a function, an object or a cache of one."""

    def __init__(self, filename: str) -> None:
        self.count, self._filename = 0, filename

    def __enter__(self) -> "Lines":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self._filename:
            return None
        self.count += event == "line"
        return self._trace


def measured(
    function: Callable[..., Any], names: tuple[str, ...], readings: dict[str, float], filename: str
) -> Callable[..., Any]:
    """The function, with the meters of these names ("peak", "kept", "lines") running; they write into `readings`.

    "lines" are those of the file with this name.

    "kept" is what is alive of the function's own tensors when it has returned, its result included. Where a drive
    calls the function several times, the worst call counts, and the lines of all of them.
    """
    if not names:
        return function

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        memory, lines = OwnBytes((args, kwargs)), Lines(filename)
        with contextlib.ExitStack() as running:
            if {"peak", "kept"} & set(names):
                running.enter_context(memory)
            if "lines" in names:
                running.enter_context(lines)
            result = function(*args, **kwargs)
        readings["peak"] = max(readings.get("peak", 0), memory.peak)
        readings["kept"] = max(readings.get("kept", 0), memory.live)
        readings["lines"] = readings.get("lines", 0) + lines.count
        return result

    return metered

"""Exceptions that the caller's own code raised and caught: the first error behind many a hang."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType, FrameType
from typing import Any

from ...trace import frames

_ORDINARY = (StopIteration, StopAsyncIteration, GeneratorExit)  # how Python ends a loop


@contextmanager
def noticed(report: Callable[[BaseException, str, int], None]) -> Iterator[None]:
    """Call `report(exception, file, line)` for every exception that passes through the caller's own code.

    Before PEP 669 this makes whatever runs inside half as fast: enter it around the caller's own code alone.
    """
    use = _monitoring if sys.version_info >= (3, 12) else _tracing
    with use(report):
        yield


def unnoticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, not the caller's own: nothing in it is told, and nothing in it costs more."""

    @wraps(function)
    def untraced(*args: Any) -> Any:
        trace = sys.gettrace()
        if trace is None:
            return function(*args)
        _trace(None)
        try:
            return function(*args)
        finally:
            _trace(trace)

    return untraced


def _trace(function: Any) -> None:
    """`sys.settrace`, which refuses while another thread is in it: then once more."""
    while True:
        try:
            return sys.settrace(function)
        except RuntimeError:
            continue


@contextmanager
def _monitoring(report: Callable[[BaseException, str, int], None]) -> Iterator[None]:
    """PEP 669: costs nothing until something is raised."""
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool = monitoring.DEBUGGER_ID
    if monitoring.get_tool(tool) is not None:  # it hears already, of everything
        yield
        return

    def raised(code: CodeType, offset: int, error: BaseException) -> Any:
        if frames.callers(code.co_filename) and not isinstance(error, _ORDINARY):
            line = next((line for start, end, line in code.co_lines() if start <= offset < end and line), 0)
            report(error, code.co_filename, line)

    monitoring.use_tool_id(tool, "rankwise")
    monitoring.register_callback(tool, monitoring.events.RAISE, raised)
    monitoring.set_events(tool, monitoring.events.RAISE)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@contextmanager
def _tracing(report: Callable[[BaseException, str, int], None]) -> Iterator[None]:
    """Before PEP 669: a trace function that follows only the caller's own frames, and no lines of them."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and not issubclass(argument[0], _ORDINARY):
            error = argument[1] if isinstance(argument[1], BaseException) else argument[0](argument[1])
            report(error, frame.f_code.co_filename, frame.f_lineno)
        return local

    follow: dict[str, Any] = {}  # by file; this runs at every call of a function, and a dict is the quickest way out

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in follow:
            follow[file] = local if frames.callers(file) else None
        if (follower := follow[file]) is not None:
            frame.f_trace_lines = False
        return follower

    before = sys.gettrace()
    _trace(entered)
    threading.settrace(entered)
    try:
        yield
    finally:
        _trace(before)
        threading.settrace(None)  # type: ignore[arg-type]

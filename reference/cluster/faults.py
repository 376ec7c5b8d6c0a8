"""What went wrong on a rank, as text and numbers: exceptions of unknown classes do not travel well."""

import traceback
from typing import Any

from ..trace import frames
from .errors import RankError
from .translate import translated


class NoKeyboard(EOFError):
    """`input()` was called on a rank, which has no keyboard."""


class Unpicklable(Exception):
    """What `fn` returned does not pickle."""

    def __init__(self, result: Any, error: Exception) -> None:
        super().__init__(f"fn returned a {type(result).__name__} that can't travel: {error}")


def describe(error: BaseException, rank: int, destroyed: frames.Frame | None = None) -> dict[str, Any]:
    """An exception as the JSON that a rank sends: the class of the owner's error, its kind, its words, its place."""
    stack = frames.of_traceback(error.__traceback__)
    known = error if isinstance(error, RankError) else translated(error, rank, destroyed)
    if known is not None:
        place = {"file": known.file, "line": known.line} if known.file else _place(stack)
        words = {"kind": known.kind, "details": known.details, "call": known.call}
        return {"error": type(known).__name__, **words, **place}
    if isinstance(error, Unpicklable):
        return {"error": "ResultError", "kind": "unpicklable result", "details": [str(error)], "file": "", "line": 0}
    return {"error": "RemoteException", **_words(error), **_place(stack)}


def _words(error: BaseException) -> dict[str, Any]:
    """Kind and details of an exception that is not ours."""
    if isinstance(error, SystemExit):
        details = [f"sys.exit({error.code!r}): left before finishing"]
        return {"error": "RankDied", "kind": "sys.exit", "details": details}
    if isinstance(error, NoKeyboard):
        return {"kind": "input", "details": ["input() cannot ask: a rank has no keyboard", "pass what it needs"]}
    text = _text(error)
    kind = "out of memory" if isinstance(error, MemoryError) or "can't allocate memory" in text else "exception"
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return {"kind": kind, "details": [text, *map(_text, members)]}


def _text(error: BaseException) -> str:
    """What an exception says of itself, as Python would print it; without the C++ frames that torch adds."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.partition("\nException raised from ")[0]


def _place(stack: list[frames.Frame]) -> dict[str, Any]:
    blamed = frames.own(stack)
    return {"file": blamed.file, "line": blamed.line}

"""What a function costs besides messages: the tensors it keeps alive, and the lines it runs.

Both are counted, not timed, so that the same program gives the same numbers in every run.
"""

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reference.trace import frames

from . import drives


class LiveBytes(TorchDispatchMode):
    """The bytes of tensors made in here, now (`live`) and at most (`peak`). What came from outside counts nothing.

    From outside are the tensors in `outside`, and whatever an operation takes before any has made it: the parameters of
    a module, or what a given function has in its closure.
    """

    def __init__(self, outside: Any) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = {_key(leaf.untyped_storage()) for leaf in _tensors(outside)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds, to keep it away from here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not _FRESH:
            for leaf in _tensors((args, kwargs)):
                self._meet(leaf.untyped_storage(), 0)
        result = function(*args, **(kwargs or {}))
        if not _machinery(sys._getframe(1)):
            for leaf in _tensors(result):
                self._meet(leaf.untyped_storage(), leaf.untyped_storage().nbytes())
        return result

    def _meet(self, storage: UntypedStorage, size: int) -> None:
        key = _key(storage)
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


_FRESH = torch.ops.aten.lift_fresh.default  # it takes what torch.tensor(...) has just made


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


_PASSING = ("__torch_function__", "guarded")  # frames that hand a call of the caller's on


def _machinery(frame: FrameType | None) -> bool:
    """True where a tensor is made by the watching of a call, not by the caller: what the next frame that acts is.

    What a drive has given to the function, and the function calls, is the caller's as much as what it calls of torch.
    """
    while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_name in _PASSING):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    return frames.machinery(file) and not file.startswith(tuple(drives.__path__))


def _key(storage: UntypedStorage) -> int:
    return storage._cdata


class Lines:
    """Counts the lines that are run in the file of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.count, self._filename = 0, getattr(getattr(function, "__code__", None), "co_filename", "")

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


def measured(function: Callable[..., Any], names: tuple[str, ...], readings: dict[str, float]) -> Callable[..., Any]:
    """The function, with the meters of these names ("peak", "kept", "lines") running; they write into `readings`.

    "kept" is what is alive of the function's own tensors when it has returned, its result included. Where a drive
    calls the function several times, the worst call counts, and the lines of all of them.
    """
    if not names:
        return function

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        memory, lines = LiveBytes((args, kwargs)), Lines(function)
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

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

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reference.trace import frames


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made in here had at one time. Tensors from outside and their views count nothing."""

    def __init__(self, outside: Any) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = {_key(leaf.untyped_storage()) for leaf in tree_leaves(outside) if isinstance(leaf, Tensor)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds, to keep it away from here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not _machinery(sys._getframe(1)):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._meet(leaf.untyped_storage())
        return result

    def _meet(self, storage: UntypedStorage) -> None:
        key = _key(storage)
        if key not in self._known:
            self._known.add(key)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


_PASSING = ("__torch_function__", "guarded")  # frames that hand a call of the caller's on


def _machinery(frame: FrameType | None) -> bool:
    """True where a tensor is made by the watching of a call, not by the caller: what the next frame that acts is."""
    while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_name in _PASSING):
        frame = frame.f_back
    return frame is not None and frames.machinery(frame.f_code.co_filename)


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
    """The function, with the meters of these names ("peak", "lines") running; they write into `readings`."""
    if not names:
        return function

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        peak, lines = PeakBytes((args, kwargs)), Lines(function)
        with contextlib.ExitStack() as running:
            if "peak" in names:
                running.enter_context(peak)
            if "lines" in names:
                running.enter_context(lines)
            result = function(*args, **kwargs)
        readings.update({"peak": peak.peak, "lines": lines.count})
        return result

    return metered

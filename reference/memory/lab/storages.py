"""Follow storages: each from the operation that first returns it to its end.

A storage is what takes up memory. Tensors are views of one: a transposed weight, a flattened activation and a detached
copy of a gradient cost nothing of their own. So to count bytes, count storages, each once.
"""

import sys
import weakref
from collections.abc import Iterable
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from reference.trace import frames

_PLAIN = (Tensor, nn.Parameter)
_REAL = frozenset({Tensor})  # what a dispatch mode calls a tensor that has memory of its own; not so a fake one
_LIFT_FRESH = torch.ops.aten.lift_fresh.default
_PASSING = ("__torch_function__", "untraced", "looked_at", "guarded")  # frames that hand a call of the caller's on


class Storages(TorchDispatchMode):
    """Sees every operation of torch between entering and leaving: forward, backward, optimizer, collectives.

    Subclasses say what to do when an operation begins and ends, and when a storage is first seen, is used again and is
    gone. What the watching of ranks makes for itself is not seen, nor what a kernel takes and gives back before it
    returns.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, weakref.ref[UntypedStorage]] = {}  # by address, which a later storage may have again

    def before(self, arguments: Iterable[Tensor]) -> None:
        """An operation is about to run on these."""

    def born(self, key: int, storage: UntypedStorage) -> None:
        """An operation has returned a storage that was not seen before."""

    def used(self, key: int, storage: UntypedStorage) -> None:
        """An operation has taken or returned a storage that was seen before. Its size may be another one: `out=`."""

    def died(self, key: int) -> None:
        """The storage is held no more."""

    def after(self) -> None:
        """An operation has returned, and its storages were seen."""

    @staticmethod
    @lru_cache(maxsize=4096)
    def watching(file: str) -> bool:
        """True where what a line of `file` asks for belongs to the watching of ranks, which is not recorded."""
        return frames.machinery(file)

    def see(self, storage: UntypedStorage) -> int | None:
        """Follow a storage. Returns its key where it was not seen before."""
        key = storage._cdata
        if key in self._seen:
            return None
        self._seen[key] = weakref.ref(storage, lambda _: self._gone(key))
        return key

    def _gone(self, key: int) -> None:
        if self._seen.pop(key, None) is not None:
            self.died(key)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._seen.clear()  # what dies from here on is not heard

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds, to keep it away from here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        real = _REAL.issuperset(types)
        if not real and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor: what it does to the tensors inside comes by here again
        kwargs = kwargs or {}
        mine = real and not self.watching(acting(sys._getframe().f_back))
        if mine:
            # torch.tensor(...) makes its tensor out of our sight, and shows it here first, as an argument.
            arguments = [] if function is _LIFT_FRESH else tensors_in((*args, *kwargs.values()))
            self.before(arguments)
        result = function(*args, **kwargs)
        if mine:
            for tensor in (*arguments, *tensors_in((result,))):
                storage = tensor.untyped_storage()
                if (key := self.see(storage)) is not None:
                    self.born(key, storage)
                else:
                    self.used(storage._cdata, storage)
            self.after()
        return result


class LiveBytes(Storages):
    """The bytes of what is made while it looks: alive now (`live`), and at most (`peak`).

    What an operation takes before any has made it was there before, and counts nothing but what it grows by: the
    parameters of a module, or what a function has in its closure.

    Args:
        outside: what was there before, too.
    """

    def __init__(self, outside: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._given: dict[int, int] = {}  # the bytes that a storage had before
        self._counted: dict[int, int] = {}  # what it adds to those that are alive
        self.before(outside)

    def before(self, arguments: Iterable[Tensor]) -> None:
        for tensor in arguments:
            storage = tensor.untyped_storage()
            if (key := self.see(storage)) is not None:
                self._given[key] = storage.nbytes()

    def born(self, key: int, storage: UntypedStorage) -> None:
        self.used(key, storage)

    def used(self, key: int, storage: UntypedStorage) -> None:
        counted = max(storage.nbytes() - self._given.get(key, 0), 0)
        self.live += counted - self._counted.get(key, 0)
        self._counted[key] = counted
        self.peak = max(self.peak, self.live)

    def died(self, key: int) -> None:
        self._given.pop(key, None)
        self.live -= self._counted.pop(key, 0)


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments or results, which hold them in tuples, lists and dicts, too.

    Sparse ones have no storage of their own, and are left out.
    """
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found += [value] if value.layout is torch.strided else []
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


def storages_of(tensor: Tensor) -> tuple[UntypedStorage, ...]:
    """The storage of a tensor; of one that wraps others, such as a DTensor, theirs."""
    if type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(tensor):
        return (tensor.untyped_storage(),)
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return tuple(storage for part in inner if isinstance(part, Tensor) for storage in storages_of(part))


def acting(frame: FrameType | None) -> str:
    """The file of the next frame that acts: neither torch's own nor one that hands a call of its caller's on."""
    while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_name in _PASSING):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""

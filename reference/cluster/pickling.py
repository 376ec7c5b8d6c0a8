"""How functions, arguments and results travel: cloudpickle, with three differences.

Tensors leave the pickle as buffers (protocol 5, PEP 574), so their bytes are copied only by the socket. Code of the
caller's own modules travels by value. And an owner's classes stay as they are when an instance comes back.
"""

import functools
import importlib
import io
import os
import pickle
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle.cloudpickle import _class_setstate

from ..trace import frames
from .wire import Buffer

_HOUSE = Path(__file__).resolve().parents[2]
_ROOMS = tuple(str(_HOUSE / room) + os.sep for room in ("reference", "puzzles", "visualizations", "rankwise"))


@functools.lru_cache(maxsize=4096)
def _send_by_value(module: str) -> None:
    """Let code of `module` travel as code, unless a rank has the same module: one of Python's, installed, or ours.

    A rank may not find a caller's own script or test, or may have imported it before its last edit.
    """
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file and not file.startswith(_ROOMS) and not frames.installed(file):
        cloudpickle.register_pickle_by_value(found)


_PUBLIC = {id(queue.SimpleQueue): (queue, "SimpleQueue"), id(threading.Lock): (threading, "Lock")}
"""Where ranks are to look for what names another module as its own: there the watch has replaced it."""

_ATOMS = {type(None), bool, int, float, str}  # there is nothing in them that needs our pickler
_known_classes: weakref.WeakSet[type] = weakref.WeakSet()  # that have left from here, or have arrived


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with the bytes of CPU tensors out of band and the caller's own modules by value."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, tuple):  # a named one: of these a schedule has thousands
            return NotImplemented
        import torch

        if isinstance(obj, ModuleType) and sys.modules.get(obj.__name__) is obj and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)  # torch's `config` modules: they refuse to be pickled
        if id(obj) in _PUBLIC:
            return getattr, _PUBLIC[id(obj)]
        if isinstance(obj, FunctionType | type):
            _send_by_value(obj.__module__)
        if isinstance(obj, type):
            _known_classes.add(obj)
        plain = type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type == "cpu"
        if plain and not obj.is_quantized and not obj.is_conj() and not obj.is_neg():
            flat = obj.detach().contiguous().reshape(-1)
            data = pickle.PickleBuffer(flat.view(torch.uint8).numpy()) if flat.numel() else b""
            return _tensor, (data, str(obj.dtype).removeprefix("torch."), tuple(obj.shape), obj.requires_grad)
        return super().reducer_override(obj)


def _tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8).view(kind) if len(data) else torch.empty(0, dtype=kind)
    return flat.view(shape).requires_grad_(requires_grad)


def dumps(obj: Any) -> tuple[bytes, tuple[memoryview, ...]]:
    """An object as a payload and the buffers that go with it."""
    if type(obj) in _ATOMS:
        return pickle.dumps(obj, protocol=5), ()
    buffers: list[pickle.PickleBuffer] = []
    with io.BytesIO() as file:
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
        return file.getvalue(), tuple(b.raw() for b in buffers)


def loads(payload: bytes, buffers: list[Buffer]) -> Any:
    """The object back, on a rank."""
    return pickle.loads(payload, buffers=buffers)


def _fill_new_class(cls: type, state: Any) -> type:
    """Give a class that has arrived its methods; leave one alone that was here before, with its own globals."""
    if cls not in _known_classes:
        _known_classes.add(cls)
        _class_setstate(cls, state)
    return cls


class _AtHome(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _fill_new_class if name == _class_setstate.__name__ else super().find_class(module, name)


def loads_result(payload: bytes, buffers: list[Buffer]) -> Any:
    """The object back, at the owner. For results of code that one trusts: a pickle can call anything."""
    return _AtHome(io.BytesIO(payload), buffers=buffers).load()


_HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {(__name__, "_tensor"): _tensor}
_HARMLESS_NAMES = {
    ("collections", "OrderedDict"),
    ("builtins", "complex"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "slice"),
    ("builtins", "range"),
    ("builtins", "bytearray"),
    ("torch", "Size"),
    ("torch", "device"),
}


_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}


class _Guarded(pickle.Unpickler):
    """Builds tensors, numbers, strings and containers of them; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        if (module, name) in _HARMLESS_NAMES or (module == "torch" and name in _DTYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a {module}.{name} is not data: return tensors, numbers, strings, lists or dicts")


def loads_guarded(payload: bytes, buffers: list[Buffer]) -> Any:
    """The object back, from code that one does not trust. Raises pickle.UnpicklingError for anything but plain data."""
    return _Guarded(io.BytesIO(payload), buffers=buffers).load()

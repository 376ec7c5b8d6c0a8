"""Buffers in flight: no code may read one that is being filled, or write one that is being filled or sent."""

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ...trace import Op, frames
from ...trace.calls import Call
from .flights import ChosenRows, Flights, OpenCall
from .gradients import Gradients
from .swallowed import unnoticed

# Functions that look at a tensor's shape, type or place in memory, not at its numbers.
_LOOKS_ONLY = frozenset(
    """
    __get__ __set__ __delete__ __len__ __hash__ size dim ndimension numel nelement stride storage_offset data_ptr
    element_size get_device type is_contiguous is_floating_point is_complex is_signed is_same_size is_shared is_tensor
    is_storage is_inference is_set_to is_pinned is_coalesced is_conj is_neg has_names untyped_storage storage
    empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    new_empty new_empty_strided new_zeros new_ones new_full new_tensor
    dim_order broadcast_shapes result_type
    requires_grad_ detach_ retain_grad register_hook register_post_accumulate_grad_hook
    """.split()  # noqa: SIM905
)
_OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "or",
    "and",
    "xor",
    "lshift",
    "rshift",
    "matmul",
)
_WRITES = frozenset({"__setitem__", *(f"__i{name}__" for name in _OPERATORS)})

_BACKWARDS = (Tensor.backward, torch.autograd.backward)
_RUN_HOOKS = (*_BACKWARDS, torch.autograd.grad)  # and hooks are the caller's own code

# Functions that may copy.
_COPYING = frozenset(
    """
    __getitem__ contiguous clone reshape flatten index_select take masked_select
    to type type_as float double half bfloat16 int long
    """.split()  # noqa: SIM905
)


class Copies:
    """Results in a copy that is not kept: `dist.recv(x[[0, 2]], src=1)` fills a temporary and leaves `x` alone.

    What was copied lives on, then, and the copy does not. A collective may also be called to warm up, or to meet the
    others, by ranks that want no result: so there the copy of a mistake is gone with the line of the call, as one that
    has a name is not; and no clone, which is made to leave its original alone.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref, StorageWeakRef, str]] = {}  # what was copied, by which function
        self.filled: dict[int, tuple[weakref.ref, Call, bool]] = {}  # copies not read since; did the rank bring data?

    def made(self, function: str, source: Any, result: Any) -> None:
        """A function that may copy gave `result`."""
        if type(result) is Tensor and isinstance(source, Tensor) and not _shares(result, source):
            copy = weakref.ref(result, partial(self._gone, id(result)))
            self._copies[id(result)] = copy, StorageWeakRef(source.untyped_storage()), function

    def received(self, call: Call, rank: int) -> None:
        """A call is complete."""
        brings = bool(call.inputs)
        wanted = call.direct and (call.op is not Op.REDUCE or call.peer == rank)
        for tensor in call.outputs if wanted else ():
            _, source, function = self._copies.get(id(tensor), (None, None, ""))
            if source and not source.expired() and not (brings and function == "clone"):
                self.filled[id(tensor)] = (weakref.ref(tensor), call, brings)

    def _gone(self, key: int, _: weakref.ref) -> None:
        """A copy is gone."""
        self._copies.pop(key, None)
        _, call, brings = self.filled.get(key, (None, None, False))
        if brings:
            where = frames.own(frames.of_stack(sys._getframe(1)))
            if (where.file, where.line) != (call.file, call.line):
                del self.filled[key]

    def used(self, tensors: Iterator[Tensor]) -> None:
        """Code reads tensors: what they hold has arrived where it is wanted."""
        for tensor in tensors:
            self.filled.pop(id(tensor), None)

    def lost(self) -> Call | None:
        """The call whose result went into a copy that is gone without a look."""
        gone = [call for reference, call, _ in list(self.filled.values()) if reference() is None]
        self.filled.clear()
        return gone[0] if gone else None


def poison(call: Call) -> None:
    """Fill the buffer of a receive with NaN until `wait()`, so that what was read too early can't look right."""
    if call.op is Op.RECV:
        for tensor in call.outputs:
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.data.fill_(float("nan"))  # `data` has a version of its own: autograd need not know


class TouchGuard(TorchFunctionMode):
    """Looks at every torch function that the caller's code calls while a request is in flight.

    It is in the way of every operator: each Python function that it calls costs all of them.
    """

    def __init__(
        self, flights: Flights, accuse: Callable[[OpenCall, str], Exception], gradients: Gradients, copies: Copies
    ) -> None:
        super().__init__()
        self.flights, self.accuse, self.gradients, self.copies = flights, accuse, gradients, copies

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (self.copies.filled or self.flights.any or _is_noted(func)):
            return func(*args, **(kwargs or {}))
        look = self.looked_at if func in _RUN_HOOKS else self.looked_at_unnoticed
        return look(func, args, kwargs or {})

    def looked_at(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func`, and note what becomes of tensors."""
        communicates = _communicates(func)
        if self.copies.filled and not communicates:
            self.copies.used(_tensors(args, kwargs))
        flying = self.flights.any and not communicates
        result = self.guarded(func, args, kwargs) if flying else func(*args, **kwargs)
        if args and (name := getattr(func, "__name__", "")) in _COPYING:
            self.copies.made(name, args[0], result)
        if func in _BACKWARDS:
            self.gradients.backward(args[0] if args else kwargs["tensors"])
        elif func is torch.autograd.grad:
            inputs = args[1] if len(args) > 1 else kwargs["inputs"]
            self.gradients.asked(args[0] if args else kwargs["outputs"], inputs, result)
        return result

    looked_at_unnoticed = unnoticed(looked_at)

    def guarded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func`. Raises RequestError where it reads or writes a buffer in flight."""
        name = getattr(func, "__name__", "")
        if name in _LOOKS_ONLY:
            return func(*args, **kwargs)
        whole, index = _part(name, args)
        parts, crowded = {id(whole): index}, self.flights.crowded
        written = _written(name, args, kwargs)
        for tensor in written:
            self.flights.note(tensor, writes=True)  # first: what another thread begins between the two sees either
            if flight := self.flights.touched(tensor, writes=True, index=parts.get(id(tensor))):
                raise self.accuse(flight, "modified")
        ids = {id(tensor) for tensor in written}
        reads = [t for t in _tensors(args, kwargs) if id(t) not in ids]
        found = ((t, self.flights.touched(t, writes=False, index=parts.get(id(t)))) for t in reads)
        disturbed = [(t, flight) for t, flight in found if flight]
        result = func(*args, **kwargs)
        for tensor, flight in disturbed:
            if not _views(result, tensor):
                raise self.accuse(flight, "read")
        for tensor in reads if crowded else ():
            if not _views(result, tensor):
                self.flights.note(tensor, writes=False)
                if flight := self.flights.touched(tensor, writes=False, index=parts.get(id(tensor))):
                    raise self.accuse(flight, "read")  # by a thread that has begun since the first look
        return result


@lru_cache(maxsize=4096)
def _is_noted(func: Any) -> bool:
    """True for functions whose results are of interest also where nothing is in flight."""
    return func in _RUN_HOOKS or getattr(func, "__name__", "") in _COPYING


@lru_cache(maxsize=4096)
def _communicates(func: Any) -> bool:
    """True for functions of torch.distributed, and for the operators that they end in. The tap sees them."""
    return (getattr(func, "__module__", None) or "").startswith(("torch.distributed", "torch._ops.c10d"))


def _written(name: str, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that a function writes: of `add_` and `x[i] = y` the first argument, and `out=`."""
    in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    first = [args[0]] if in_place and args and isinstance(args[0], Tensor) else []
    return first + list(_tensors((kwargs.get("out"),), {}))


def _part(name: str, args: Any) -> tuple[Tensor | None, Any]:
    """The tensor of which a function reads or writes a part only, and its index as in `tensor[index]`."""
    match name, args:
        case "__getitem__" | "__setitem__", (Tensor() as whole, Tensor() as numbers, *_) if _counts(numbers):
            return whole, ChosenRows(0, numbers)
        case "__getitem__" | "__setitem__", (Tensor() as whole, index, *_):
            return whole, index
        case "index_select" | "index_add_" | "index_copy_" | "index_fill_", (Tensor() as whole, int(dim), numbers, *_):
            return whole, ChosenRows(dim, numbers)
        case "embedding", (Tensor() as one, Tensor() as other, *_):  # of torch, and of nn.functional
            return (other, ChosenRows(0, one)) if _counts(one) else (one, ChosenRows(0, other))
    return None, None


def _counts(numbers: Tensor) -> bool:
    """True for a tensor that can say which rows are meant, not for a mask."""
    return not numbers.is_floating_point() and numbers.dtype not in (torch.bool, torch.uint8)


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    """All tensors among the arguments of a call."""
    yield from tensors_of((*args, *kwargs.values()))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in a value: itself, or in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def _views(result: Any, tensor: Tensor) -> bool:
    """True where a result, or one of several, shares the memory of `tensor`: a view was made and nothing was read."""
    return any(_shares(each, tensor) for each in tensors_of(result))


def _shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()

"""Memory in flight: which request reads or writes which bytes, who knows that it is over, who touched it before."""

import ctypes
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import _disable_current_modes

from ...trace import Op, frames
from ...trace.calls import Call
from .order import Order, Stamp
from .raw import checksum, stretch

_REMEMBERED, _BYTES = 64, 1 << 28  # flights and touches that are over, while several threads live
_LENT = 1 << 22  # bytes up to which memory is lent: the caller's peak is to be the caller's
_EXACT = 1 << 20  # elements of a tensor with holes up to which overlaps are looked for one by one


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A stretch of memory that a request is reading or writing.

    `lent` is what the request writes in its place, where there is something: the caller's own memory gets the result in
    `wait()`, so that what the caller does to it before is seen for certain, whenever the message comes. Large buffers
    are filled as they are.
    """

    call: Call
    start: int
    end: int
    filling: bool  # the request writes it; else it only reads it
    tensor: Tensor
    checksum: int | None  # of memory that stays as it is until `wait()`
    lent: Tensor | None = None

    @property
    def changed(self) -> bool:
        """True where something wrote to memory that was to stay as it is, behind torch's back (numpy)."""
        if self.checksum is None:
            return False
        return stretch(self.tensor) != (self.start, self.end) or self.checksum != checksum(self.tensor)

    def give(self) -> None:
        """Hand over the result."""
        if self.lent is not None:
            ctypes.memmove(self.start, self.lent.data_ptr(), self.end - self.start)
            if not self.lent.is_inference() and self.lent._version:  # a message leaves it at 0, a collective does not
                torch.autograd.graph.increment_version(self.tensor)


@dataclass(frozen=True, slots=True)
class Touch:
    """What a thread has done with a tensor while another one ran."""

    tensor: Tensor
    writes: bool
    where: frames.Frame
    thread: str


class Flights:
    """The buffers of all requests that have not been waited for, and of those that only one thread has waited for."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lock = threading.RLock()
        self.flying: list[OpenCall] = []
        self.landed: list[tuple[OpenCall, Stamp]] = []
        self._touches: list[tuple[Touch, Stamp]] = []
        self._owed: dict[int, list[OpenCall]] = {}  # by number of the call: results that are still to be given

    @property
    def any(self) -> bool:
        """True where a tensor may be in flight, or another thread may have one in flight soon."""
        return bool(self.flying or self.landed or self._order.running)

    @property
    def crowded(self) -> bool:
        """True while the caller has a second thread."""
        return bool(self._order.running)

    def begin(self, call: Call, *, lend: bool) -> None:
        """A request is about to be made; `lend` it memory, where its caller continues before it is complete."""
        written = {id(t) for t in call.outputs}
        tensors = (*call.outputs, *(t for t in call.inputs if id(t) not in written))
        flights = [_flight(call, tensor, id(tensor) in written, lend) for tensor in tensors if _in_one_piece(tensor)]
        with self._lock:
            self.flying = [*self.flying, *flights]
            if lend:
                self._owed[call.number] = flights

    def instead(self, call: Call, arguments: Any) -> Any:
        """The arguments of a call, with the memory that it was lent."""
        lent = {id(f.tensor): f.lent for f in self._owed.get(call.number, ()) if f.lent is not None}
        return _exchanged(arguments, lent) if lent else arguments

    def back(self, call: Call, results: Any) -> Any:
        """What a call gave, with the caller's own tensors instead of what was lent for them."""
        own = {id(f.lent): f.tensor for f in self._owed.get(call.number, ()) if f.lent is not None}
        return _exchanged(results, own) if own else results

    def owes(self, call: Call) -> bool:
        """True where the result of a call is still to be given to its caller."""
        return call.number in self._owed

    def settle(self, call: Call) -> OpenCall | None:
        """A call is complete: its caller gets the result. Returns what was changed on the way, behind torch's back."""
        with self._lock:
            owed = self._owed.pop(call.number, None)
            flights = [flight for flight in self.flying if flight.call is call] if owed is None else owed
            changed = next((flight for flight in flights if flight.changed), None)
            for flight in owed or () if changed is None else ():
                flight.give()
        return changed

    def end(self, call: Call) -> None:
        """A call has been waited for, by this thread."""
        with self._lock:
            ended = [flight for flight in self.flying if flight.call is call]
            stamp = self._order.stamp()
            self.landed = [(flight, when) for flight, when in self.landed if not self._order.knows(when)]
            if self._order.running:
                self.landed = _last([*self.landed, *((replace(flight, lent=None), stamp) for flight in ended)])
            else:
                self._touches = []
            if ended:  # last: a thread that looks meanwhile finds them in one of the two
                self.flying = [flight for flight in self.flying if flight.call is not call]

    def touched(self, tensor: Tensor, *, writes: bool, index: Any = None) -> OpenCall | None:
        """The flight that reading (or writing) `tensor`, or `tensor[index]`, would disturb."""
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        if not plain or tensor.layout is not torch.strided or not tensor.numel():
            return None
        flights = (flight for flight in (*self.flying, *self._unheard()) if flight.filling or writes)
        return next((flight for flight in flights if overlaps(tensor, flight, index)), None)

    def filled_by(self, flight: OpenCall) -> Call | None:
        """The request that writes into memory of this one: two names of one tensor, or views of it."""
        others = (each for each in self.flying if each.filling and each.call is not flight.call)
        return next((each.call for each in others if each.start < flight.end and flight.start < each.end), None)

    def note(self, tensor: Tensor, *, writes: bool) -> None:
        """A thread reads or writes a tensor while another one runs, which may soon have it in flight."""
        if self.crowded:
            where = frames.own(frames.of_stack(sys._getframe(1)))
            touch = Touch(tensor, writes, where, threading.current_thread().name)
            with self._lock:
                self._touches = _last([*self._touches, (touch, self._order.stamp())])

    def disturbed(self, call: Call) -> Touch | None:
        """What another thread has done to a buffer of a call that is to be made, without waiting for it."""
        flights = [flight for flight in self.flying if flight.call is call] if self._touches else []
        unheard = [touch for touch, stamp in self._touches if not self._order.knows(stamp)] if flights else []
        pairs = ((touch, flight) for touch in unheard for flight in flights if flight.filling or touch.writes)
        return next((touch for touch, flight in pairs if overlaps(touch.tensor, flight)), None)

    def _unheard(self) -> list[OpenCall]:
        """Flights that are over, which this thread can't know."""
        return [flight for flight, stamp in self.landed if not self._order.knows(stamp)]


def _in_one_piece(tensor: Tensor) -> bool:
    start, end = stretch(tensor)
    return end > start


def _flight(call: Call, tensor: Tensor, filling: bool, lend: bool) -> OpenCall:
    """The flight of one tensor of a call; `lend` it memory to be filled, where that is little."""
    start, end = stretch(tensor)
    lend = lend and not (filling and end - start > _LENT)
    lent = None
    if lend and filling:
        with _disable_current_modes():  # a mode may count the caller's memory
            lent = tensor.detach().clone()
    stays = lend or (not filling and call.op is Op.SEND)
    return OpenCall(call, start, end, filling, tensor, checksum(tensor) if stays else None, lent)


def _last(remembered: list[tuple[Any, Stamp]]) -> list[tuple[Any, Stamp]]:
    """The last of them: not too many, for their tensors live as long."""
    room, kept = _BYTES, []
    for each in reversed(remembered[-_REMEMBERED:]):
        room -= each[0].tensor.nbytes
        if room < 0:
            break
        kept.append(each)
    return kept[::-1]


def _exchanged(value: Any, others: dict[int, Tensor]) -> Any:
    """A value in which each of some tensors is replaced, in lists and tuples, too."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return type(value)(_exchanged(each, others) for each in value)
    return value


@dataclass(frozen=True)
class ChosenRows:
    """A part of a tensor: slices along one dim, by their numbers."""

    dim: int
    numbers: Tensor

    def near(self, tensor: Tensor, flight: OpenCall) -> Iterator[Tensor]:
        """Those between whose first and last element something is in flight."""
        first, last = bounds(tensor.select(self.dim, 0))
        numbers = self.numbers.detach().flatten().long().remainder(tensor.shape[self.dim])
        ahead = numbers * (tensor.stride(self.dim) * tensor.element_size())
        near = (first + ahead < flight.end) & (last + ahead >= flight.start)
        return (tensor.select(self.dim, number) for number in numbers[near].unique().tolist())


def bounds(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first and the last element of a tensor."""
    first = tensor.data_ptr()
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + steps * tensor.element_size()


def overlaps(tensor: Tensor, flight: OpenCall, index: Any = None) -> bool:
    """True where an element of `tensor`, or of `tensor[index]`, lies in the memory of a flight."""
    first, last = bounds(tensor)
    if last < flight.start or first >= flight.end:
        return False
    if isinstance(index, ChosenRows):
        with DisableTorchFunction():
            return any(overlaps(row, flight) for row in index.near(tensor, flight))
    if _basic(index):
        with DisableTorchFunction():
            return overlaps(tensor[index], flight)
    if tensor.is_contiguous() and index is None:
        return True
    if tensor.numel() > _EXACT:
        return False
    addresses = torch.full(tensor.shape, first)
    for dim, step in enumerate(tensor.stride()):
        along = torch.arange(tensor.shape[dim]) * (step * tensor.element_size())
        addresses += along.view([-1 if d == dim else 1 for d in range(tensor.dim())])
    chosen = addresses if index is None else addresses[index]
    return bool(((chosen >= flight.start) & (chosen < flight.end)).any())


def _basic(index: Any) -> bool:
    """True for an index that makes a view: numbers, slices and ellipses. Lists and masks make a copy."""
    parts = index if isinstance(index, tuple) else (index,)
    return index is not None and all(type(part) in (int, slice, type(None), EllipsisType) for part in parts)

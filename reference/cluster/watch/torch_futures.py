"""Waits in torch's futures: for calls, whose requests gave them, or for a thread that sets their results."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from ...trace.calls import Call
from .order import Order
from .patches import replaced

Future = torch._C.Future  # torch.futures.Future is one
done, _wait, _set_result, _then = Future.done, Future.wait, Future.set_result, Future.then


class Waiter(Protocol):
    """Waits for calls, and is told of polls."""

    order: Order

    def wait_in_future(self, calls: list[tuple[Call, Callable[[], Any]]], wait: Callable[[], Any]) -> Any: ...
    def polled(self, call: Call) -> None: ...


class Futures:
    """What the futures of a rank wait for: their own calls, or those of the futures that they are made from."""

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[Future, Call] = WeakKeyDictionary()
        self._parts: WeakKeyDictionary[Future, list[Future]] = WeakKeyDictionary()

    def of(self, call: Call, future: Future) -> Future:
        """A future, now known as that of a call."""
        self._calls[future] = call
        return future

    @contextmanager
    def watched(self, waiter: Waiter) -> Iterator[None]:
        """Tell of waits and polls, by whatever name they are made: each ends up in a method of torch's own class."""
        collect_all = torch._C._collect_all

        def is_done(future: Future) -> bool:
            waiter.order.looks(future)
            finished = done(future)
            if finished:
                self._take(future, waiter.order)
            elif calls := self._awaited(future):
                waiter.polled(calls[0][0])
            return finished

        def wait(future: Future) -> Any:
            if any(origin in self._calls for origin in self._origins(future)):
                result = waiter.wait_in_future(self._awaited(future), partial(_wait, future))
            else:
                result = wait_for_a_thread(future)
            self._take(future, waiter.order)
            return result

        def set_result(future: Future, result: Any) -> None:
            waiter.order.gives(future)
            _set_result(future, result)

        def then(future: Future, callback: Callable[[Future], Any]) -> Future:
            return self._made(_then(future, callback), [future])

        def collected(futures: list[Future]) -> Future:
            return self._made(collect_all(futures), futures)

        with ExitStack() as stack:
            for name, method in (("done", is_done), ("wait", wait), ("set_result", set_result), ("then", then)):
                stack.enter_context(replaced(Future, name, method))
            stack.enter_context(replaced(torch._C, "_collect_all", collected))
            yield

    def _made(self, future: Future, parts: list[Future]) -> Future:
        self._parts[future] = list(parts)
        return future

    def _origins(self, future: Future) -> list[Future]:
        """The futures that a future is made from in the end; itself, where it is made from none."""
        parts = self._parts.get(future)
        return [future] if parts is None else [origin for part in parts for origin in self._origins(part)]

    def _awaited(self, future: Future) -> list[tuple[Call, Callable[[], Any]]]:
        """The calls that a future still waits for, and how to wait for each."""
        origins = (each for each in self._origins(future) if each in self._calls and not done(each))
        return [(self._calls[each], partial(_wait, each)) for each in origins]

    def _take(self, future: Future, order: Order) -> None:
        """What was done before the results were set is known to this thread."""
        for origin in self._origins(future):
            order.takes(origin)


def wait_for_a_thread(future: Future) -> Any:
    """Wait for a result that no call gives."""
    return _wait(future)

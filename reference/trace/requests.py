"""The requests that a tapped group gives: gloo's own, whose ends a recorder is told, and whose messages can be polled.

gloo completes a message inside `wait()` alone: `is_completed()` of a send or a receive says False until a thread has
waited, and a loop that polls it never ends. On NCCL it ends. So a poll of ours has a thread wait for the message.
"""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.distributed import Work

from reference.process_group import called

from .calls import Call
from .events import Op

FOREVER = timedelta(days=10)  # time limits belong to the owner of the ranks
NO_FUTURE = "a send or a receive has no future on gloo: call wait() of its request"
OURS = "rankwise: "  # how the names of our own threads begin


class RequestRecorder(Protocol):
    """Receives the events of requests; see `tap.Recorder`."""

    def waiting(self, call: Call) -> None: ...
    def polled(self, call: Call) -> None: ...
    def completed(self, call: Call) -> None: ...
    def no_future(self, call: Call) -> None: ...
    def future_taken(self, call: Call, future: torch.futures.Future) -> torch.futures.Future: ...
    def source_asked(self, call: Call, frame: FrameType) -> None: ...


class Request(Work):
    """Another request, asked for all that a subclass does not say itself."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._carried = work

    def source_rank(self) -> int:
        """Group rank that an any-source receive heard from."""
        return self._carried._source_rank()

    def _source_rank(self) -> int:
        return self.source_rank()

    def is_success(self) -> bool:
        """True where the call is done and did not fail."""
        return self._carried.is_success()

    def exception(self) -> Any:
        """The error of a failed call."""
        return self._carried.exception()

    def result(self) -> list[Tensor]:
        """The tensors of a finished call."""
        return self._carried.result()

    def synchronize(self) -> None:
        """As `wait`, for the current stream."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: there are no streams on a CPU."""
        self.wait()


@called(Work)
class MessageRequest(Request):
    """A send or a receive of gloo that can be polled, too.

    Args:
        work: the request of gloo.
        patience: how long a message that is polled may take.
    """

    def __init__(self, work: Work, patience: timedelta = FOREVER) -> None:
        super().__init__(work)
        self._patience = patience
        self._waiter: threading.Thread | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Block until the message is there; True. Raises RuntimeError where it is not there in time."""
        limited = timeout.total_seconds() > 0
        if self._waiter is None:
            return self._carried.wait(timeout) if limited else self._carried.wait()
        self._waiter.join(timeout.total_seconds() if limited else None)
        if self._waiter.is_alive():
            raise RuntimeError(f"the message was not there within {timeout.total_seconds():g} s")
        return self._ended()

    def is_completed(self) -> bool:
        """True once the message is there."""
        if self._waiter is None:
            if self._carried.is_completed():
                return True
            self._waiter = threading.Thread(target=self._await, name=f"{OURS}waits for a message", daemon=True)
            self._waiter.start()
        return not self._waiter.is_alive() and self._ended()

    def _await(self) -> None:
        try:
            self._carried.wait(self._patience)
        except BaseException as error:  # it belongs to the caller
            self._error = error

    def _ended(self) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        """Raises NotImplementedError: gloo has none for a message."""
        raise NotImplementedError(NO_FUTURE)


@called(Work)
class Later(Work):
    """A call that runs when it is waited for: `monitored_barrier`, which blocks and gives no request."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Run the call; True."""
        self._run()
        return True


@called(Work)
class TappedWork(Request):
    """The request of a call that is recorded."""

    def __init__(self, work: Work, call: Call, recorder: RequestRecorder) -> None:
        super().__init__(work)
        self._call, self._recorder = call, recorder
        self._holds = (*call.inputs, *call.outputs)  # as torch's own requests do, for as long as they live
        self._outputs = tuple(call.outputs)

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Block until the call is done; True."""
        with DisableTorchFunction():
            self._recorder.waiting(self._call)
        done = self._carried.wait(timeout) if timeout.total_seconds() > 0 else self._carried.wait()
        self._finish()
        return done

    def is_completed(self) -> bool:
        """True once the call is done; asking is a way of waiting."""
        done = self._carried.is_completed()
        if done:
            self._finish()
        else:
            self._recorder.polled(self._call)
        return done

    def get_future(self) -> torch.futures.Future:
        """The request as a future. Its holder may wait where the tap cannot see."""
        if self._call.op.point_to_point:
            self._recorder.no_future(self._call)
        return self._recorder.future_taken(self._call, self._carried.get_future())

    def result(self) -> list[Tensor]:
        """The tensors of a finished call: its caller's own, whatever memory a recorder had it write to."""
        results = super().result()
        return list(self._outputs) if len(results) == len(self._outputs) else results

    def _finish(self) -> None:
        if self._call.op is Op.RECV and self._call.peer is None:
            self._call.peer = self._call.group[self._carried._source_rank()]
        with DisableTorchFunction():
            self._recorder.completed(self._call)

    def source_rank(self) -> int:
        """Group rank that an any-source receive heard from."""
        self._recorder.source_asked(self._call, sys._getframe(1))
        return super().source_rank()

    def _source_rank(self) -> int:  # what `dist.recv` asks
        self._recorder.source_asked(self._call, sys._getframe(1))
        return super().source_rank()

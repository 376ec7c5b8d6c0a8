"""The CPU in the place of a GPU, for frameworks that ask for one where nothing needs it.

What is made on device "cuda" is made on the CPU, and there is nothing to wait for.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def pretend(types: bool = True) -> None:
    """From now on, in this process.

    Args:
        types: a tensor that is asked for its type as text says that of a GPU's.
    """
    OnCPU(types).__enter__()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.Stream = torch.cuda.Event = torch.cuda.current_stream = NothingToWaitFor
    torch.cuda.stream = lambda _: nullcontext()
    Tensor.cuda = lambda self, *_, **__: self
    Tensor.record_stream = lambda self, _: None


class OnCPU(TorchFunctionMode):
    """Turns device "cuda" into the CPU, and pins nothing."""

    def __init__(self, types: bool) -> None:
        super().__init__()
        self.types = types

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        if "pin_memory" in given:
            given["pin_memory"] = False
        found = function(*args, **given)
        if self.types and function is Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


class NothingToWaitFor:
    """A stream, or an event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        """Wait for nothing."""

    record_event = record = wait = synchronize = wait_event = lambda self, *_: self

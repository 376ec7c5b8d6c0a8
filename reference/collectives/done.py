"""What a collective leaves in the end: its results in the tensors of the caller, and a request that is done."""

from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import Work

from reference.process_group import called


def put_back(used: Tensor, x: Tensor) -> None:
    """Copy a contiguous tensor to the one that it is a copy of, `x`.

    Raises:
        ValueError: for an expanded tensor, if elements in one place of memory would get different values.
    """
    repeated = [dim for dim in range(x.dim()) if x.stride(dim) == 0 and x.size(dim) > 1]
    place, value = x, used
    for dim in repeated:
        place, value = place.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    if repeated and not torch.equal(value.expand_as(used), used):
        raise ValueError("an expanded tensor has one place for values that differ here: take a copy with .clone()")
    place.copy_(value)


@called(Work)
class Done(Work):
    """The request of a collective that is done. `tensors` are its results."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.tensors = tensors
        self.future = torch.futures.Future(devices=sorted({str(t.device) for t in tensors if t.is_cuda}))
        self.future.set_result(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True, at once."""
        return True

    def get_future(self) -> torch.futures.Future:
        """Where DDP looks for the results."""
        return self.future

    def result(self) -> list[Tensor]:
        """The results."""
        return self.tensors

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

"""What autograd really keeps for backward: the tensors that it saves, each storage once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, UntypedStorage
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True)
class Saved:
    """A tensor that waits for backward."""

    tensor: str  # what it is: the name in a formula, its shape in a measurement
    bytes: int  # of its storage


def total(saved: Iterable[Saved]) -> int:
    """Bytes of all of them."""
    return sum(one.bytes for one in saved)


def saved_tensors(function: Callable[[], Any], but: Iterable[Tensor] = ()) -> tuple[Saved, ...]:
    """What autograd saves while `function` runs, in order; a storage that is saved several times counts once.

    Args:
        function: does the forward pass, and returns what depends on it: what is not held is not kept for long.
        but: tensors that do not count, such as parameters, which are there anyway.
    """
    known = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in but}
    found: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage: UntypedStorage = tensor.untyped_storage()
        if storage._cdata not in known:
            known[storage._cdata] = storage  # held, so that no other gets its address
            found.append(Saved(_described(tensor), storage.nbytes()))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    del result
    return tuple(found)


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"

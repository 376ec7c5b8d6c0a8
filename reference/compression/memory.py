"""Compressors: sums of gradients over ranks that carry less than the gradients, and remember what they did not carry.

    compressor.begin(calls)            once: which gradients come together, by name; room for all that is remembered
    compressor.sum(0, gradients)       in place: afterwards each is the sum over ranks, or nearly

This is `plain_memory.sum_with_feedback` with: real ranks, many gradients at once, and a memory that has names. What is
remembered is keyed by the parameter's name, never by its place among others: buckets may be cut anew at any time, and
a checkpoint may be loaded on another number of ranks. Sums do not depend on how gradients are cut into calls.

Gradients are parts that add up: each rank has divided its loss by the tokens of all. Nothing is averaged here.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.data_parallel.remembered import Remembered
from reference.zero.cost import all_reduce


@dataclass(frozen=True)
class Known:
    """What a compressor knows of a gradient before it comes."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        """As many as it has elements, flat."""
        return torch.zeros(self.shape.numel(), dtype=self.dtype, device=self.device)


class Compressor(ABC):
    """Sums gradients over the ranks of a communicator.

    Args:
        communicator: n ranks, all of which call the same.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.calls: list[list[Known]] = []

    def begin(self, calls: Sequence[Sequence[Known]]) -> None:
        """Learn which gradients will come together, and in which order."""
        self.calls = [list(call) for call in calls]
        for call in self.calls:
            self.prepare(call)

    @abstractmethod
    def prepare(self, call: Sequence[Known]) -> None:
        """Make room for what is remembered of these."""

    @abstractmethod
    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Sum the gradients of call `number` over all ranks, in place."""

    def start(self, number: int, gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Start to do so; the result finishes it. What takes several messages, of which each waits for one, is done."""
        self.sum(number, gradients)
        return _done

    def remembered(self) -> list[Remembered]:
        """What goes into a checkpoint, in one order on all ranks."""
        return []

    @abstractmethod
    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """The formula: bytes that a rank of n sends in a step, by rings and pairs, where numbers have so many bytes."""


class WithResiduals(Compressor):
    """Error feedback: what a rank did not send of a gradient, it adds to the next one."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self.residuals: dict[str, Tensor] = {}  # flat, by the parameter's name
        self._shapes: dict[str, torch.Size] = {}

    def prepare(self, call: Sequence[Known]) -> None:
        """Nothing is left of a gradient before the first."""
        for known in call:
            self.residuals[known.name] = known.zeros()
            self._shapes[known.name] = known.shape

    def remembered(self) -> list[Remembered]:
        """Of each rank its own."""
        mine = {"holder": self.communicator.rank(), "holders": self.communicator.size()}
        return [
            Remembered.of("residual", name, values, self._shapes[name], **mine)
            for name, values in self.residuals.items()
        ]

    def wanted(self, number: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        """What this rank would send of each gradient if it could: its residual, to which the gradient was added."""
        pairs = zip(self.calls[number], gradients, strict=True)
        return [self.residuals[known.name].add_(gradient.flatten()) for known, gradient in pairs]


class HalfPrecision(Compressor):
    """Numbers of another dtype on the way, and no memory: what torch calls the hooks fp16_compress and bf16_compress.

    Args:
        communicator: n ranks.
        dtype: in which gradients travel, and are added up on the way.
    """

    def __init__(self, communicator: Communicator, dtype: torch.dtype) -> None:
        super().__init__(communicator)
        self.dtype = dtype

    def prepare(self, call: Sequence[Known]) -> None:
        """Nothing is remembered."""

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """One all-reduce."""
        self.start(number, gradients)()

    def start(self, number: int, gradients: Sequence[Tensor]) -> Callable[[], None]:
        """The same, under way while backward computes. Gradients in one buffer are rounded in one pass, and back."""
        flat = side_by_side(gradients)
        whole = (torch.cat([gradient.flatten() for gradient in gradients]) if flat is None else flat).to(self.dtype)
        arrived = self.communicator.start_all_reduce(whole)

        def finish() -> None:
            spread(arrived(), gradients if flat is None else [flat])

        return finish

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """An all-reduce of each call."""
        return sum(all_reduce_bytes(rank, n, elements(call), self.dtype.itemsize) for call in self.calls)


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """Tensors that follow each other in one buffer, without gaps, as a flat view of it; None for others."""
    first, end = tensors[0], tensors[0].storage_offset()
    for tensor in tensors:
        is_same = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (is_same and tensor.dtype == first.dtype and tensor.is_contiguous() and tensor.storage_offset() == end):
            return None
        end += tensor.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def _done() -> None:
    """Nothing is under way."""


def spread(whole: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat tensor to several, one after the other."""
    for tensor, values in zip(tensors, whole.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def elements(call: Sequence[Known]) -> int:
    """Of all gradients of a call together."""
    return sum(known.shape.numel() for known in call)


def all_reduce_bytes(rank: int, n: int, length: int, itemsize: int) -> int:
    """Bytes that a rank sends where so many numbers are summed around a ring."""
    return all_reduce(length, n, rank) * itemsize if n > 1 else 0


def generator_of(*words: Any) -> torch.Generator:
    """A generator of the CPU that these words alone decide: the same on every rank."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


MakeCompressor = Callable[[Communicator], Compressor]
"""Of the ranks that hold the same parameters."""

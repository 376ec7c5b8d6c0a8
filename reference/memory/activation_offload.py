"""Activations that wait for backward elsewhere: in the CPU's memory, or in files.

    with offload_activations(target):
        loss = token_loss(model(tokens), targets, global_tokens)
    loss.backward()                 outside: what is recomputed in backward is needed at once

Whatever forward saves for backward is copied there, and its memory here is free when forward drops it. Backward copies
it back when it is needed. A storage travels once each way, however many tensors are views of it and are saved.

On a GPU copies run on a stream of their own beside the computation, and backward sends for the storage before the one
that it is at, so that it comes in time. Best together with full recomputation: only inputs of blocks travel, 2D bytes
for each token in bf16, against about 26 D² FLOPs of a block of Llama 3 8B. At the 55 GB/s of PCIe 5 and 400 TFLOP/s
that is hidden from a width D of 560 on; all of a block's activations, 43D bytes, from 12,000 on.

Rhu et al. 2016, "vDNN: virtualized deep neural networks"; Rajbhandari et al. 2021, "ZeRO-Infinity", sec. 5.1.2.
"""

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from .offload_targets import OffloadTarget

SMALL = 1 << 14
"""Bytes. Less than that is not worth a journey."""


@contextmanager
def offload_activations(target: OffloadTarget, small: int = SMALL) -> Iterator[None]:
    """Keep at `target` what forward saves inside, until backward has used it.

    Parameters stay where they are, and so do sparse tensors and what is on the meta device.

    Args:
        target: where activations wait.
        small: storages of fewer bytes stay here.

    Raises:
        BadInput: from forward, if `target` has no room left.
        RuntimeError: from backward, if what stayed here was written to; what travelled is as it was.
    """
    hooks = OffloadHooks(target, small)
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        yield


class OffloadedStorage:
    """A storage that stays on the host until backward asks for it.

    Args:
        storage: what to copy.
        target: where to.
        stream: of copies; None on the CPU, where there are none.
        earlier: the storage that was sent before this one, and that backward needs after it.
    """

    def __init__(
        self,
        storage: UntypedStorage,
        target: OffloadTarget,
        stream: torch.cuda.Stream | None,
        earlier: "OffloadedStorage | None",
    ) -> None:
        self.source = weakref.ref(storage)
        self._stream = stream
        self._earlier = weakref.ref(earlier) if earlier else lambda: None
        self._returned: tuple[Tensor, torch.cuda.Event | None] | None = None
        here = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._device, self._there = here.device, target.allocate(here)
        with self._beside():
            self._there.copy_(here, non_blocking=True)
            if stream:
                here.record_stream(stream)  # this memory is not given to others before it has been read

    def come(self) -> None:
        """Begin to copy it back, unless that was done."""
        if self._returned is None:
            with self._beside():
                here = torch.empty_like(self._there, device=self._device)
                here.copy_(self._there, non_blocking=True)
                self._returned = here, self._stream.record_event() if self._stream else None

    def storage(self) -> UntypedStorage:
        """The copy that has come back; begins to fetch the one that is needed next."""
        self.come()
        here, arrival = self._returned
        if arrival:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(arrival)
            here.record_stream(current)
            if earlier := self._earlier():
                earlier.come()
        return here.untyped_storage()

    def _beside(self) -> AbstractContextManager[None]:
        """Runs on the stream of copies, after what has been asked of the GPU until now."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


@dataclass(frozen=True)
class OffloadedView:
    """How to see a storage as the tensor that was saved."""

    offloaded: OffloadedStorage
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class KeptOnDevice:
    """A tensor that stays here, and how often it had been written to when it was saved."""

    tensor: Tensor
    version: int


class OffloadHooks:
    """What autograd hands over in one forward, and gets back in backward.

    Where hooks pack what is saved, autograd leaves it to them to notice that it was written to.
    """

    def __init__(self, target: OffloadTarget, small: int) -> None:
        self._target, self._small = target, small
        self._known: weakref.WeakValueDictionary[tuple, OffloadedStorage] = weakref.WeakValueDictionary()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._latest: weakref.ref[OffloadedStorage] | None = None

    def pack(self, x: Tensor) -> KeptOnDevice | OffloadedView:
        """Send the storage of `x` to the target, unless it is there or has to stay."""
        if x.layout is not torch.strided:  # sparse: there is no one storage
            return KeptOnDevice(x, x._version)
        x = x.resolve_conj().resolve_neg()
        if _is_parameter(x) or x.is_meta or x.untyped_storage().nbytes() < self._small:
            return KeptOnDevice(x, x._version)
        return OffloadedView(self._offloaded(x), x.dtype, x.shape, x.stride(), x.storage_offset())

    def unpack(self, kept: KeptOnDevice | OffloadedView) -> Tensor:
        """The tensor that was packed."""
        if isinstance(kept, KeptOnDevice):
            if kept.tensor._version != kept.version:
                raise RuntimeError("a tensor that backward needs was written to")
            return kept.tensor
        storage = kept.offloaded.storage()
        return torch.empty(0, dtype=kept.dtype, device=storage.device).set_(
            storage, kept.offset, kept.shape, kept.stride
        )

    def _offloaded(self, x: Tensor) -> OffloadedStorage:
        """One for each storage; another one if it has been written to in between.

        Most views count writes together with the tensor that they are views of. Those of `unsafe_chunk`, by which
        recurrent cells cut their gates, count their own: tensors that share a storage, each known by where it lies.
        """
        storage, base = x.untyped_storage(), x if x._base is None else x._base
        key = storage._cdata, x._version, base.storage_offset(), base.shape, base.stride()
        offloaded = self._known.get(key)
        if (
            offloaded is None or offloaded.source() is not storage
        ):  # a later storage may have the address of an earlier one
            earlier = self._latest and self._latest()
            offloaded = self._known[key] = OffloadedStorage(storage, self._target, self._stream_of(x), earlier)
            self._latest = weakref.ref(offloaded)
        return offloaded

    def _stream_of(self, x: Tensor) -> torch.cuda.Stream | None:
        if not x.is_cuda:
            return None
        return self._streams.setdefault(x.device, torch.cuda.Stream(x.device))


def _is_parameter(x: Tensor) -> bool:
    """Also of views of one: a transposed weight, for example."""
    return isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)

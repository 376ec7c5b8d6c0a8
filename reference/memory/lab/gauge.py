"""A gauge: what a real training step keeps in memory, byte by byte, by kind.

    gauge = Gauge.of(model, optimizer)
    with gauge:
        gauge.mark("forward")
        loss = token_loss(model(tokens), targets, tokens.numel())
        gauge.mark("backward")
        loss.backward()
        gauge.mark("step")
        optimizer.step()
    gauge.history.peak

It sees every operation of torch and the storages that come of it, and is told of the end of each. So its bytes are
exact: no sampling, no allocator between. On the meta device too, where a model of 8B parameters takes no memory.

A storage has one kind for all of its life. Sources say which tensors are parameters, gradients and so on *now*; they
are asked before each operation, and a storage that is found there has been of that kind from its birth on: the matrix
that backward has just made is a gradient before autograd hangs it on `p.grad`. What no source ever claims is an
activation if it was made while autograd recorded, or if autograd knows where it came from; a buffer otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer

from reference.memory.history import KINDS, History, Mark, MemoryKind

from .storages import Storages, storages_of

Source = Callable[[], Iterable[Tensor]]
"""Says which tensors are of a kind now."""

CUDA_GRAIN = 512
"""Bytes. CUDA's caching allocator hands out multiples of these."""


@dataclass(slots=True, eq=False)
class _Life:
    """Of one storage."""

    kind: MemoryKind
    claimed: bool = False  # by a source: final
    bytes: int | None = None  # its size; None of what was there before, and counts nothing
    counted: int = 0  # what it adds to the bytes in use


class Gauge(Storages):
    """Follows live storages by kind, from entering to leaving. One gauge measures once.

    Args:
        sources: by kind, which tensors are of that kind now. One in several is of the first kind in this order.
        device: count only storages there, "cuda" for example; everywhere by default.
        grain: bytes; each storage counts as a multiple of it. `CUDA_GRAIN` makes the sum comparable with
            `torch.cuda.memory_allocated()`, which counts like that, and also what libraries keep for themselves.
        units: more sources by name, to follow how many bytes each of them has.

    What was there before counts where a source names it, and nothing otherwise: hand in the batch as a buffer if it
    shall count. Storages may change their size (`untyped_storage().resize_`, by which FSDP frees what it gathered):
    of those that a source has ever named this is noticed at the next operation, of others at the next that uses them.
    """

    def __init__(
        self,
        sources: Mapping[MemoryKind, Source],
        device: torch.device | str | None = None,
        grain: int = 1,
        units: Mapping[str, Source] | None = None,
    ) -> None:
        super().__init__()
        self._sources = [(kind, sources[kind]) for kind in KINDS if kind in sources]
        self._device, self._grain = device and torch.device(device), grain
        self._units = dict(units or {})
        self._lives: dict[int, _Life] = {}  # of storages that are alive
        self._claimed: dict[int, _Life] = {}  # those of them that a source has named
        self._events: list[tuple[int, _Life, int]] = []  # (moment, whose, bytes more or fewer)
        self._marks: list[Mark] = []
        self._sizes: dict[str, list[int]] = {name: [] for name in self._units}  # by moment
        self._moment = 0

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, batch: Iterable[Tensor] = (), **options: Any) -> "Gauge":
        """A gauge for a model and its optimizer, on the model's device.

        Tensors that the optimizer updates beside the model are masters, and count as its state.

        Args:
            model: its parameters and their gradients are followed.
            optimizer: its state, and its parameters and their gradients where they are not the model's.
            batch: tensors to count as buffers: tokens and targets, the model's own buffers.
            options: as for `Gauge`; `device=None` counts on every device.
        """
        parameters, batch = parameters_of(model), tuple(batch)
        sources: dict[MemoryKind, Source] = {
            MemoryKind.PARAMETERS: parameters,
            MemoryKind.GRADIENTS: lambda: gradients(chain(parameters(), masters(optimizer))),
            MemoryKind.OPTIMIZER: lambda: chain(masters(optimizer), state_tensors(optimizer)),
            MemoryKind.BUFFERS: lambda: batch,
        }
        return cls(sources, **{"device": next(iter(parameters())).device, **options})

    def mark(self, label: str) -> None:
        """From here on the phase `label` runs."""
        self._settle()
        self._marks.append(Mark(label, self._moment))
        self.after()

    @property
    def history(self) -> History:
        """What was seen until now."""
        usage = np.zeros((self._moment + 1, len(KINDS)), dtype=np.int64)
        for moment, life, change in self._events:
            usage[moment, KINDS.index(life.kind)] += change
        units = {name: np.array([*sizes, *sizes[-1:]], dtype=np.int64) for name, sizes in self._sizes.items()}
        return History(usage.cumsum(axis=0), tuple(self._marks), units=units)

    def __enter__(self) -> "Gauge":
        self._settle()
        self.after()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if not any(error):
            self._settle()  # what the last operation left
        super().__exit__(*error)

    def before(self, arguments: Iterable[Tensor]) -> None:
        self._settle()
        for tensor in arguments:
            storage = tensor.untyped_storage()
            if (key := self.see(storage)) is not None:
                self._lives[key] = _Life(MemoryKind.BUFFERS)  # from outside: counts nothing
            elif tensor.requires_grad and tensor.grad_fn is not None:
                life = self._lives[storage._cdata]
                life.kind = life.kind if life.claimed else MemoryKind.ACTIVATIONS

    def born(self, key: int, storage: UntypedStorage) -> None:
        life = self._lives[key] = _Life(MemoryKind.ACTIVATIONS if torch.is_grad_enabled() else MemoryKind.BUFFERS)
        self._resize(life, storage)

    def used(self, key: int, storage: UntypedStorage) -> None:
        life = self._lives[key]
        if life.bytes is not None and storage.nbytes() != life.bytes:
            self._resize(life, storage)

    def died(self, key: int) -> None:
        self._change(self._lives.pop(key), 0)
        self._claimed.pop(key, None)

    def after(self) -> None:
        """The moment is over: what ends from here on ends in the next one."""
        for name, source in self._units.items():
            self._sizes[name].append(self._size_of(source()))
        self._moment += 1

    def _settle(self) -> None:
        """Ask the sources what is theirs now, and what they ever named how large it is."""
        for kind, source in self._sources:
            for tensor in source():
                for storage in storages_of(tensor):
                    life = self._lives.get(storage._cdata)
                    if life is None or not life.claimed:
                        self._claim(storage, kind)
        for key, life in tuple(self._claimed.items()):
            storage = self._seen[key]()
            if storage is not None and storage.nbytes() != life.bytes:
                self._resize(life, storage)

    def _claim(self, storage: UntypedStorage, kind: MemoryKind) -> None:
        self.see(storage)
        life = self._lives.setdefault(storage._cdata, _Life(kind))
        life.kind, life.claimed = kind, True
        self._claimed[storage._cdata] = life
        self._resize(life, storage)

    def _resize(self, life: _Life, storage: UntypedStorage) -> None:
        life.bytes = storage.nbytes()
        self._change(life, -(-life.bytes // self._grain) * self._grain if self._counts(storage) else 0)

    def _change(self, life: _Life, counted: int) -> None:
        if counted != life.counted:
            self._events.append((self._moment, life, counted - life.counted))
            life.counted = counted

    def _counts(self, storage: UntypedStorage) -> bool:
        here = self._device
        return here is None or (storage.device.type == here.type and here.index in (None, storage.device.index))

    def _size_of(self, tensors: Iterable[Tensor]) -> int:
        found = {storage._cdata: storage for tensor in tensors for storage in storages_of(tensor)}
        return sum(storage.nbytes() for storage in found.values())


def parameters_of(model: nn.Module) -> Source:
    """The parameters that the modules of a model have now; much quicker to ask than `model.parameters`."""
    own = [module._parameters for module in model.modules()]  # these dicts stay, whatever is hung into them
    return lambda: (parameter for names in own for parameter in names.values() if parameter is not None)


def gradients(parameters: Iterable[nn.Parameter]) -> Iterator[Tensor]:
    """The gradients that are there."""
    return (parameter.grad for parameter in parameters if parameter.grad is not None)


def masters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """What an optimizer updates: the model's parameters themselves, or master copies of them."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def state_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    """What an optimizer remembers: moments, and a count of steps for each parameter."""
    return (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))

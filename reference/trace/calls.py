"""A call in flight: what is known of it between the post and the end of the wait."""

import sys
import threading
from dataclasses import dataclass, field
from types import FrameType

import torch

from .events import Event, Op
from .frames import HOUSE, foreign, machinery, own_stack

_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    if dtype not in _NAMES:
        _NAMES[dtype] = str(dtype).removeprefix("torch.")
    return _NAMES[dtype]


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank, from its post to the return of its wait."""

    op: Op
    group: tuple[int, ...]
    inputs: list[torch.Tensor]  # what this rank brings
    outputs: list[torch.Tensor]  # where the result will be
    root: int | None = None  # group rank of the other side, as given
    tag: int = 0
    reduce: str = ""
    splits: tuple[int, ...] = ()  # all-to-all: elements for each rank, and
    out_splits: tuple[int, ...] = ()  # elements from each rank
    width: int = 1  # elements of one row, the unit in which splits are written
    group_name: str = ""
    function: str = ""  # as the caller wrote it: "batch_isend_irecv", "all_reduce"
    file: str = ""
    line: int = 0
    direct: bool = False  # the caller's own code called torch.distributed, no library between
    number: int = -1  # how many calls this rank made before
    posted: int = -1
    completed: int | None = None
    begin: float = 0.0
    end: float | None = None
    peer: int | None = field(init=False)  # global rank of the other side; None for no rank or any
    shape: tuple[int, ...] = field(init=False)  # of the one tensor that an `Event` describes, or (elements of several,)
    elements: int = field(init=False)
    item_size: int = field(init=False)
    dtype: str = field(init=False)
    strides: tuple[int, ...] = field(init=False)  # of a tensor that is not contiguous, else ()
    pieces: tuple[int, ...] = field(init=False)  # elements of each tensor where there are several, else ()

    def __post_init__(self) -> None:
        there = self.root is not None and 0 <= self.root < len(self.group)
        self.peer = self.group[self.root] if there else None
        tensors = self.outputs if self.op is Op.SCATTER else self.inputs or self.outputs
        self.elements = sum(t.numel() for t in tensors)
        self.shape = tuple(tensors[0].shape) if len(tensors) == 1 else (self.elements,)
        self.item_size = tensors[0].element_size() if tensors else 0
        self.dtype = dtype_name(tensors[0].dtype) if tensors else ""
        self.strides = _strides(tensors[0]) if len(tensors) == 1 else ()
        self.pieces = tuple(t.numel() for t in tensors) if len(tensors) > 1 else ()

    def release(self) -> None:
        """Let go of the tensors: the call is complete."""
        self.inputs, self.outputs = [], []

    def event(self, rank: int) -> Event:
        """What `rank` can tell of the call by now."""
        return Event(
            rank=rank,
            op=self.op,
            group=self.group,
            peer=self.peer,
            tag=self.tag,
            shape=self.shape,
            dtype=self.dtype,
            bytes=self.elements * self.item_size,
            splits=tuple(split * self.item_size for split in self.splits),
            reduce=self.reduce,
            file=self.file,
            line=self.line,
            posted=self.posted,
            completed=self.completed,
            begin=self.begin,
            end=self.end,
            group_name=self.group_name,
        )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of a tensor that is not contiguous, else (). A dim of size 1 may have any stride, and has 0 here."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return ()
    return tuple(stride * (size > 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


# What lies between a caller and the group: `contextlib` ends a block of coalesced calls, and the last two hold Python's
# `deprecated`, which wraps the older spellings.
PUBLIC = (
    "distributed_c10d.py",
    "contextlib.py",
    "c10d_logger.py",
    "overrides.py",
    "typing_extensions.py",
    "warnings.py",
)
_THREADS = ("threading.py", "concurrent/futures/thread.py")  # what runs `Thread(target=dist.recv)`


def locate(call: Call, frame: FrameType | None) -> None:
    """Fill in who made the call: the caller's own file and line, and the function as the caller wrote it.

    A call from a thread without Python of the caller's (autograd's, under DDP) is put down to the main thread's line.
    """
    house = None
    call.direct = True
    while frame is not None:
        file = frame.f_code.co_filename
        if not foreign(file):
            if not file.startswith(HOUSE):
                break
            house = house or frame
        elif house is None:
            if file.endswith("distributed_c10d.py"):
                call.function = frame.f_code.co_name
            elif not file.endswith(PUBLIC + _THREADS) and not machinery(file):
                call.direct = False
        frame = frame.f_back
    frame = frame or house
    if frame is None and threading.current_thread() is not threading.main_thread():
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frame = next(own_stack(main), None)
    if frame is not None:
        call.file, call.line = frame.f_code.co_filename, frame.f_lineno
    call.function = call.function or str(call.op)

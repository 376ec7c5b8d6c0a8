"""The bytes behind a tensor: read without triggering a dispatch mode, in microseconds."""

import ctypes
import zlib

import numpy as np
import torch
from torch import Tensor

_FLOATS = {
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}


def stretch(tensor: Tensor) -> tuple[int, int]:
    """First address of a dense tensor and the one after its last; an empty stretch for any other."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    if not plain or tensor.layout is not torch.strided or not (tensor.is_contiguous() or dense(tensor)):
        return 0, 0
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def dense(tensor: Tensor) -> bool:
    """True where the elements fill one stretch of memory without holes or overlaps, in whatever order."""
    covered = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != covered:
                return False
            covered *= size
    return True


def checksum(tensor: Tensor) -> int:
    """The CRC-32 of the bytes of a dense tensor, which also detects numbers that change places."""
    return zlib.crc32(_memory(*stretch(tensor)))


def floats(tensor: Tensor) -> np.ndarray | None:
    """The numbers of a dense tensor, as they lie in memory; None where numpy does not know its dtype (bfloat16)."""
    start, end = stretch(tensor)
    if end == start or tensor.dtype not in _FLOATS:
        return None
    return np.frombuffer(_memory(start, end), _FLOATS[tensor.dtype])


def _memory(start: int, end: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * (end - start)).from_address(start)

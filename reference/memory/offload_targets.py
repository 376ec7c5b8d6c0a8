"""Places for tensors that are seldom needed: the memory of the CPU, and files.

| target      | room                     | speed of a common machine | a tensor there is                              |
|-------------|--------------------------|---------------------------|------------------------------------------------|
| HostMemory  | hundreds of GB of a node | 55 GB/s, over PCIe 5      | a CPU tensor, page-locked where a GPU reads it |
| DiskStorage | terabytes                | 3 GB/s, of one NVMe disk  | a CPU tensor whose pages are those of a file   |

A file is mapped into memory: reading the tensor reads the file, and pages that were not used for a while leave memory
by themselves. So the same code computes on either, and only what is in use has to fit into memory. (Rajbhandari et al.
2021, "ZeRO-Infinity", sec. 5, do this with reads and writes of their own.)
"""

import errno
import os
import tempfile
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from reference.choices import Offload
from reference.errors import BadInput


class OffloadTarget(Protocol):
    """Where tensors can be kept."""

    def allocate(self, x: Tensor) -> Tensor:
        """A contiguous CPU tensor of the shape and dtype of `x`, kept here; its values are anything.

        Raises:
            BadInput: if there is no room.
        """


class HostMemory:
    """The memory of the CPU."""

    def allocate(self, x: Tensor) -> Tensor:
        """Page-locked if `x` is on a GPU: such memory the GPU reads and writes by itself, while others compute."""
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)


class DiskStorage:
    """Files without a name in a folder; each lives as long as its tensor. Nothing is left, not even by a crash.

    Args:
        path: on a real disk. A `tmpfs`, as /tmp and /dev/shm often are, is memory itself.

    Raises:
        BadInput: if there is no such folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadInput(f"{path} is not a folder: tensors are kept in files there")

    def allocate(self, x: Tensor) -> Tensor:
        """A tensor mapped to a new file, whose blocks are reserved: a disk that is full says so here and not later."""
        if not x.numel():
            return torch.empty(x.shape, dtype=x.dtype)
        try:
            with tempfile.TemporaryFile(dir=self.path) as file:  # has no name, or loses it at once
                os.posix_fallocate(file.fileno(), 0, x.nbytes)
                name = f"/proc/self/fd/{file.fileno()}"
                return torch.from_file(name, shared=True, size=x.numel(), dtype=x.dtype).view(x.shape)
        except RuntimeError as error:
            why = "no addresses are left to map a file to; leave more of `ulimit -v`"
            raise BadInput(f"no room for {x.nbytes:,} bytes in {self.path}: {why}") from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            why = "the disk is full" if full else error.strerror
            raise BadInput(f"no room for {x.nbytes:,} bytes in {self.path}: {why}; choose another folder") from error


def offload_target(offload: Offload, folder: str | Path) -> OffloadTarget:
    """The target that is meant by CPU or DISK.

    Args:
        offload: not NONE.
        folder: where the files of DISK go.
    """
    return DiskStorage(folder) if offload is Offload.DISK else HostMemory()

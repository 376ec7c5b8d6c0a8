"""A rank's file of a checkpoint, ready in memory: a save copies elements into it, and a thread hands it to the disk.

`torch.distributed.checkpoint` (DCP) writes each box of a tensor as `torch.save` would, a small zip archive, of which
all but the elements is the same as long as names, shapes and dtypes are. To make archives is work for Python, and a
thread that runs Python takes turns with training, which needs the same lock. So DCP makes them once, into memory. A
save replaces the elements where they lie, and what is left for the thread (checksum, write, fsync) needs no lock.

The archives' own checksums (CRC-32) stay those of the elements that were there first. torch compares none of them, and
can be told to write none (`torch.serialization.set_crc32_options`); that of the whole file is always new.
"""

import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, RawIOBase
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.storage import WriteResult

from reference.data_parallel.gradient_sync import ParameterShard
from reference.zero.checkpoint_folder import Fingerprint
from reference.zero.checkpoint_write import Chunks, WritePlan, Written, write_by
from reference.zero.chunk import Chunk, Writer


class FileImage:
    """All bytes of the file that a rank writes. On a GPU's machine they are in page-locked memory of the CPU.

    Args:
        plan: what the rank writes.
        chunks: these, and maybe others that the rank holds.
    """

    def __init__(self, plan: WritePlan, chunks: Chunks) -> None:
        counted = InMemory()
        write_by(counted, plan, chunks)
        on_gpu = any(chunk.held.is_cuda for chunk in chunks.values())
        self.bytes = torch.empty(counted.stream.end, dtype=torch.uint8, pin_memory=on_gpu)
        writer = InMemory(self.bytes)
        self.results, self.name = write_by(writer, plan, chunks), writer.name
        self._places = [(one.index, self._elements_of(one)) for one in self.results]

    def _elements_of(self, box: WriteResult) -> Tensor:
        begin, length = box.storage_data.offset, box.storage_data.length
        archive = self.bytes[begin : begin + length]
        return archive[elements_in(archive.numpy().tobytes())]

    @torch.no_grad()
    def fill(self, held: Mapping[str, tuple[ParameterShard, Tensor]]) -> None:
        """Copy the elements that the rank has now: of each name in the checkpoint, of which part, and its values."""
        chunks = {name: Chunk(*held[name]) for name in {index.fqn for index, _ in self._places}}
        for index, place in self._places:
            place.copy_(chunks[index.fqn].pieces[index.offset].flatten().view(torch.uint8))

    def write(self, partial: Path) -> Written:
        """Write the file to the last byte. Sends no message.

        Raises:
            OSError: if it cannot be written.
        """
        data = memoryview(self.bytes.numpy())
        with FileSystem().create_stream(partial / self.name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return Written(self.results, {self.name: Fingerprint.of_bytes(data)})


class Stream(RawIOBase):
    """A file of which each byte goes to a place in memory; without a place, they are counted."""

    def __init__(self, place: Tensor | None = None) -> None:
        self.place, self.end = place, 0

    def write(self, data: bytes) -> int:
        begin, self.end = self.end, self.end + len(data)
        if self.place is not None:
            self.place.numpy()[begin : self.end] = memoryview(data)
        return len(data)

    def tell(self) -> int:
        return self.end


class InMemory(Writer):
    """Writes the one file of a rank into a stream, and notes the name that it would have."""

    def __init__(self, place: Tensor | None = None) -> None:
        super().__init__(".", sync_files=False)
        self.stream, self.name, self.fs = Stream(place), "", self

    def concat_path(self, folder: Path, name: str) -> str:
        return name

    @contextmanager
    def create_stream(self, name: str, mode: str) -> Iterator[Stream]:
        self.name = name
        yield self.stream


def elements_in(archive: bytes) -> slice:
    """Where the elements are in what `torch.save` writes of one tensor: its record `data/0`, which is not compressed.

    In a zip archive they come behind a header of 30 bytes, a name and an extra field, whose lengths end the header.
    """
    with zipfile.ZipFile(BytesIO(archive)) as records:
        record = next(each for each in records.infolist() if each.filename.endswith("/data/0"))
    name, extra = struct.unpack_from("<HH", archive, record.header_offset + 26)
    begin = record.header_offset + 30 + name + extra
    return slice(begin, begin + record.file_size)

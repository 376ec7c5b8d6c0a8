"""Pieces of parameters as `torch.distributed.checkpoint` (DCP) wants to see them.

DCP writes what each rank holds of a tensor, and remembers which elements these are. A rank that loads says which
elements it needs, and DCP finds out which files have them: so a checkpoint fits any other number of ranks, and any
other way to cut. A form of data parallelism cuts a flattened parameter at arbitrary places. That is a tensor of one
dim of which this rank has the elements from `begin` on.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future


class Chunk(Tensor):
    """Elements [begin, begin + held.numel()) of a flat tensor of `numel` elements; the others are elsewhere.

    It has the length of the whole, and nothing can be computed with it. Where several ranks have the same elements, DCP
    lets one of them write.

    Args:
        held: flat.
        begin: its first element's place in the whole.
        numel: of the whole.
    """

    @staticmethod
    def __new__(cls, held: Tensor, begin: int, numel: int) -> "Chunk":
        return Tensor._make_wrapper_subclass(cls, (numel,), dtype=held.dtype, device=held.device)

    def __init__(self, held: Tensor, begin: int, numel: int) -> None:
        self.held, self.begin = held, begin

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"a chunk is for saving and loading; {function} works on its `held`")

    # What DCP asks a tensor for (torch.distributed._checkpointable); DTensor answers the same questions.

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        where = self.__create_chunk_list__()[0]
        data = TensorWriteData(chunk=where, properties=TensorProperties(self.dtype), size=self.size())
        return [WriteItem(MetadataIndex(name, where.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets=torch.Size([self.begin]), sizes=self.held.shape)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.held


class Writer(FileSystemWriter):
    """Writes a file for each rank, and says what the disk said: `torch.save` hides that behind an error of its own."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            raise cause or error  # noqa: B904

"""Pieces of parameters as `torch.distributed.checkpoint` (DCP) wants to see them.

DCP writes what each rank holds of a tensor, and remembers which elements these are. A rank that loads says which
elements it needs, and DCP finds out which files have them: so a checkpoint fits any other number of ranks, and any
other way to cut. What a rank holds of a parameter are a few boxes (`reference.sharding.pieces`): blocks after tensor
parallelism, and what is left of these where ZeRO cuts through the middle of a row.
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

from reference.data_parallel.gradient_sync import ParameterShard
from reference.sharding import Slices


class Chunk(Tensor):
    """What a rank has of a parameter; all else of it is on other ranks, and padding is nowhere.

    It has the shape of the whole, and nothing can be computed with it. Where several ranks have the same box, DCP lets
    one of them write.

    Args:
        part: where it is in the whole.
        held: one value for each element of the part's master, flat; what DCP loads, it writes there.
    """

    @staticmethod
    def __new__(cls, part: ParameterShard, held: Tensor) -> "Chunk":
        whole = Slices.of(part.shape)
        return Tensor._make_wrapper_subclass(cls, whole.sizes, dtype=held.dtype, device=held.device)

    def __init__(self, part: ParameterShard, held: Tensor) -> None:
        self.held = held
        self.pieces = {torch.Size(box.begins): values for box, values in part.pieces(held)}  # by where they begin

    def boxes(self) -> list[tuple[Slices, Tensor]]:
        """Where in the parameter its elements are, and a view of them in the form of each box."""
        return [(Slices(tuple(begins), tuple(values.shape)), values) for begins, values in self.pieces.items()]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"a chunk is for saving and loading; {function} works on its `held`")

    # What DCP asks a tensor for (torch.distributed._checkpointable); DTensor answers the same questions.

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, where.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(where, TensorProperties(self.dtype), self.size()),
            )
            for where in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, values.shape) for offsets, values in self.pieces.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.pieces[index.offset]


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

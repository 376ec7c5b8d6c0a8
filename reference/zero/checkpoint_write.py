"""How a checkpoint gets to the disk: plan, write, seal. A save does so at once, or all but the plan behind training.

    plan     all ranks together: which of them writes what; good for as long as names, shapes and dtypes stay the same
    write    each rank by itself, without a message: its file to the last byte (`fsync`), and the file's checksum
    seal     rank 0, once all have written: the metadata, the manifest, and the name; from here on it is there

Plan and files are those of `torch.distributed.checkpoint` (DCP): of what many ranks hold, one writes each tensor.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from . import checkpoint_folder
from .agreement import together
from .checkpoint_folder import Fingerprint
from .chunk import Chunk, Writer

Chunks = Mapping[str, Chunk]
"""What a rank holds, by its name in the checkpoint."""


@dataclass(frozen=True)
class WritePlan:
    """Which rank writes what."""

    mine: SavePlan
    metadata: Metadata  # of all ranks

    def own(self, chunks: Chunks) -> dict[str, Chunk]:
        """Of all that this rank holds, what it is to write."""
        names = {item.index.fqn for item in self.mine.items}
        return {name: chunk for name, chunk in chunks.items() if name in names}


@dataclass(frozen=True)
class Written:
    """What a rank has written."""

    results: list[WriteResult]
    files: dict[str, Fingerprint]  # by name


def plan_of(chunks: Chunks, group: ProcessGroup) -> WritePlan:
    """Agree on which rank writes what. All ranks call this together; each makes the whole plan, and takes its part."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(chunks), is_coordinator=dist.get_rank(group) == 0)
    local = planner.create_local_plan()
    plans, metadata = planner.create_global_plan(together(lambda: local, group))
    return WritePlan(Writer(".").prepare_global_plan(plans)[dist.get_rank(group)], metadata)


def write(partial: Path, plan: WritePlan, chunks: Chunks) -> Written:
    """Write this rank's file, and read it again for its checksum. Sends no message.

    Raises:
        OSError: if it cannot be written.
    """
    results = write_by(Writer(partial), plan, chunks)
    mine = (name for name in os.listdir(partial) if name.startswith(plan.mine.storage_data.prefix))
    return Written(results, {name: Fingerprint.of(partial / name) for name in mine})


def write_by(writer: Writer, plan: WritePlan, chunks: Chunks) -> list[WriteResult]:
    """Let DCP write what this rank is to write. Returns which box begins where in the file, and how long it is."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(chunks))
    return writer.write_data(plan.mine, planner).value()


def seal(partial: Path, plan: WritePlan, written: list[Written], contents: Mapping[str, Any]) -> Path:
    """Add to what all ranks have written what it is, and give it its name.

    Args:
        partial: where they have written.
        plan: any rank's.
        written: by every rank.
        contents: what JSON can hold, "step" among it.

    Raises:
        OSError: if it cannot be; then there is no such checkpoint.
    """
    Writer(partial).finish(copy.copy(plan.metadata), [each.results for each in written])
    files = {name: one for each in written for name, one in each.files.items()}
    files[".metadata"] = Fingerprint.of(partial / ".metadata")
    return checkpoint_folder.finish(partial, contents["step"], contents, files)

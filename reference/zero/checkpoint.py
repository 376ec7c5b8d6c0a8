"""Checkpoints that any plan can save, and any other can load, on any other number of ranks.

What a form and its optimizer hold of a parameter are a few boxes of a few matrices: of its master, and of what the
optimizer remembers. Where the cuts are is the only thing in which replicas, ZeRO-1, ZeRO-2, FSDP and HSDP differ, with
and without tensor parallelism, and `torch.distributed.checkpoint` (DCP) finds for each new box the old ones that it
lies in. A vocabulary's padding is not saved: it depends on the number of ranks, and is zero everywhere.

    save        describe, then write: each rank its share, and of what many have, one. At last, rename: now it is there
    load        compare the model, then every byte with its checksum; read aside; only then change anything

Not saved: frozen parameters and buffers, since no form holds them; hyperparameters, since they are the business of the
run that loads.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import GradientSync
from reference.errors import BadInput

from . import checkpoint_folder
from .checkpoint_folder import Fingerprint, latest
from .checkpoint_state import SavedParameter, describe, difference, empty_chunks, held_chunks, install, lacking, merge
from .chunk import Chunk, Writer

__all__ = ["latest", "load", "save"]

T = TypeVar("T")


def save(
    folder: Path | str,
    form: GradientSync,
    optimizer: Optimizer,
    step: int,
    extra: Mapping[str, Any],
    group: ProcessGroup,
    keep: int = 2,
) -> Path:
    """Save a checkpoint. All ranks call this together, between two steps.

    Args:
        folder: of checkpoints, of this run alone, the same one for all ranks.
        form: whose masters to save.
        optimizer: over these masters. What it remembers are numbers, and tensors with one for each element.
        step: how many were taken.
        extra: what else it takes to resume, such as the sampler's place and the loss scaler's state; the same on every
            rank. None, bool, int, float and str; lists, and dicts with names, of these.
        group: all ranks of the form, shards and replicas, of all axes.
        keep: so many of the last checkpoints stay in the folder, this one included.

    Returns:
        The checkpoint.

    Raises:
        BadInput: the same on every rank, if it cannot be saved: no room, no permission, something that is not plain.
            Whatever checkpoints were in the folder are still there.
    """
    folder = Path(folder)
    if keep < 1:
        raise BadInput(f"a folder keeps 1 checkpoint or more, not {keep}")
    require_plain(extra)
    parameters = merge(together(lambda: describe(form.parts, optimizer.state), group))
    contents = {
        "step": int(step),
        "extra": extra,
        "optimizer": kind_of(optimizer),
        "parameters": {name: asdict(saved) for name, saved in parameters.items()},
    }
    try:
        checkpoint = write(folder, contents, held_chunks(form.parts, optimizer.state), group)
    except BadInput as error:
        last = latest(folder)
        raise BadInput(f"step {step} was not saved: {error}; the last checkpoint is {last or 'none'}") from None
    try:
        by_first(lambda: checkpoint_folder.keep_last(folder, keep), group)
    except BadInput as error:
        raise BadInput(f"{checkpoint} was saved, but an old one could not be deleted: {error}") from None
    return checkpoint


def load(
    folder: Path | str, form: GradientSync, optimizer: Optimizer, group: ProcessGroup
) -> tuple[int, dict[str, Any]]:
    """Load a checkpoint into a form and its optimizer, and publish it. All ranks call this together.

    Load what you trust: checksums tell accidents, and DCP's metadata is a pickle, which can run any program.

    Args:
        folder: a checkpoint, or a folder of them, of which the newest is taken that was finished.
        form: of the same model, with masters of the same dtype.
        optimizer: over its masters, of the same class, with options that let it keep no more.
        group: all ranks of the form.

    Returns:
        Step and extra, as they were saved.

    Raises:
        BadInput: the same on every rank, if there is no checkpoint, or it is damaged, or another model's, or lacks what
            the optimizer needs. Nothing has changed then.
    """

    def found() -> tuple[Path, dict[str, Any]]:
        checkpoint = checkpoint_folder.find(Path(folder))
        return checkpoint, checkpoint_folder.contents(checkpoint)

    checkpoint, contents = by_first(found, group)
    saved = {name: SavedParameter.from_json(**each) for name, each in contents["parameters"].items()}
    if unlike := difference(saved, merge(together(lambda: describe(form.parts, {}), group))):
        raise BadInput(f"{checkpoint} is of another model: {unlike}")
    if contents["optimizer"] != kind_of(optimizer):
        raise BadInput(f"{checkpoint} was saved with {contents['optimizer']}, and this is {kind_of(optimizer)}")
    if missing := next(filter(None, together(lambda: lacking(form.parts, optimizer, saved), group)), None):
        raise BadInput(f"{checkpoint} was saved with {contents['optimizer']} that kept {missing}")
    share = checkpoint_folder.files(checkpoint)[dist.get_rank(group) :: dist.get_world_size(group)]
    together(lambda: checkpoint_folder.verify(checkpoint, share), group)
    chunks = empty_chunks(form.parts, saved)
    through_dcp(lambda: dcp.load(chunks, storage_reader=dcp.FileSystemReader(checkpoint), process_group=group))
    install(form.parts, optimizer, saved, chunks)
    form.end_step()
    return contents["step"], contents["extra"]


def write(folder: Path, contents: Mapping[str, Any], chunks: Mapping[str, Chunk], group: ProcessGroup) -> Path:
    """Write what the ranks hold, to the end on all of them; otherwise nothing is left.

    Raises:
        BadInput: on every rank, if it cannot be written.
    """
    partial = by_first(lambda: checkpoint_folder.begin(folder), group)
    try:
        through_dcp(lambda: dcp.save(chunks, storage_writer=Writer(partial), process_group=group))
        files = fingerprints(partial, group)
        return by_first(lambda: checkpoint_folder.finish(partial, contents["step"], contents, files), group)
    except BadInput:
        by_first(lambda: checkpoint_folder.discard(partial), group)
        raise


def fingerprints(partial: Path, group: ProcessGroup) -> dict[str, Fingerprint]:
    """Of all files that DCP has made, by name: each rank reads again what it has written."""
    rank = dist.get_rank(group)
    prefixes = (f"__{rank}_", ".metadata") if rank == 0 else (f"__{rank}_",)

    def read() -> dict[str, Fingerprint]:
        return {name: Fingerprint.of(partial / name) for name in os.listdir(partial) if name.startswith(prefixes)}

    return {name: one for mine in together(read, group) for name, one in mine.items()}


def together(do: Callable[[], T], group: ProcessGroup) -> list[T]:
    """Do something on every rank, to the end on all of them or with the same error on all of them.

    Returns:
        What it returned on each rank.

    Raises:
        BadInput: if files or input were to blame on some rank.
    """
    rank, result, failure = dist.get_rank(group), None, None
    try:
        result = do()
    except BadInput as error:
        failure = str(error)
    except OSError as error:
        failure = f"rank {rank}: {error}"
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (result, failure), group=group)
    for _, failure in everyone:
        if failure:
            raise BadInput(failure)
    return [result for result, _ in everyone]


def by_first(do: Callable[[], T], group: ProcessGroup) -> T:
    """Do something on rank 0, and tell the others what came of it.

    Raises:
        BadInput: on every rank, if files or input were to blame.
    """
    return together(lambda: do() if dist.get_rank(group) == 0 else None, group)[0]


def through_dcp(do: Callable[[], Any]) -> None:
    """Save or load. DCP tells every rank what has failed on any of them, by an exception that is no `Exception`.

    Raises:
        BadInput: if files were to blame.
        RuntimeError: otherwise.
    """
    try:
        do()
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, OSError):
            raise BadInput(f"rank {rank}: {cause}") from None
        raise RuntimeError(str(error)) from None


def kind_of(optimizer: Optimizer) -> str:
    """The name of an optimizer's class; of one whose state is offloaded, what it would be otherwise."""
    return getattr(optimizer, "kind", type(optimizer)).__name__


def require_plain(extra: Any, where: str = "extra") -> None:
    """Refuse what would not come back from a text as it was.

    Raises:
        BadInput: that says what it is, and where.
    """
    match extra:
        case None | bool() | int() | float() | str():
            return
        case list():
            inside = enumerate(extra)
        case dict() if all(isinstance(name, str) for name in extra):
            inside = extra.items()
        case _:
            raise BadInput(
                f"{where} is {type(extra).__name__}: take None, bool, int, float, str, or lists and dicts of them"
            )
    for name, value in inside:
        require_plain(value, f"{where}[{name!r}]")

"""Checkpoints that any plan can save, and any other can load, on any other number of ranks.

What a form and its optimizer hold of a parameter are a few boxes of a few matrices: of its master, and of what the
optimizer remembers. Where the cuts are is the only thing in which replicas, ZeRO-1, ZeRO-2, FSDP and HSDP differ, with
and without tensor parallelism, and `torch.distributed.checkpoint` (DCP) finds for each new box the old ones that it
lies in. A vocabulary's padding is not saved: it depends on the number of ranks, and is zero everywhere.

    save        begin: describe. Then write: each rank its share, and of what many have, one. At last, rename: now it
                is there. One step at a time (`in_steps`), so that another caller can let training continue in between
    load        compare the model, then every byte with its checksum; read aside; only then change anything

Not saved: frozen parameters and buffers, since no form holds them; hyperparameters, since they are the business of the
run that loads.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
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
from .agreement import by_first, together
from .checkpoint_folder import latest
from .checkpoint_remembered import held_parts, rooms
from .checkpoint_remembered import install as install_remembered
from .checkpoint_state import (
    SavedParameter,
    describe,
    difference,
    empty_chunks,
    held_chunks,
    install,
    lacking,
    merge,
    saved_parts,
)
from .checkpoint_write import Chunks, WritePlan, Written, plan_of, seal, write

__all__ = ["by_first", "latest", "load", "save", "together"]

T = TypeVar("T")

Steps = Generator[Callable[[], Any], list[Any], Path]
"""A save one step at a time: it yields what each rank does by itself, and is sent what that gave on all of them."""


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
    begun = begin(Path(folder), form, optimizer, step, extra, group)
    chunks = held_chunks(held_parts(form, optimizer), optimizer.state)
    return at_once(begun, chunks, group, keep)


@dataclass(frozen=True)
class Begun:
    """A checkpoint of which no element is written yet."""

    partial: Path  # where it is written
    contents: dict[str, Any]  # all that it says but the elements; values, which no later step changes


def begin(
    folder: Path, form: GradientSync, optimizer: Optimizer, step: int, extra: Mapping[str, Any], group: ProcessGroup
) -> Begun:
    """Agree on what a checkpoint says, and make a place for it. All ranks call this together; it takes one message.

    Raises:
        BadInput: the same on every rank, if something is not plain, ranks do not agree, or there can be no place.
    """
    require_plain(extra)
    first, place = dist.get_rank(group) == 0, []

    def mine() -> tuple[dict[str, SavedParameter], dict[str, SavedParameter], list[Path]]:
        of_parameters = describe(saved_parts(form, optimizer), optimizer.state)
        remembered = describe([each.as_saved() for each in form.remembered], {})
        place.extend([checkpoint_folder.begin(folder)] if first else [])
        return of_parameters, remembered, place

    with or_nothing_is_left(folder, step, place, group):
        of_parameters, remembered, ((partial,), *_) = zip(*together(mine, group), strict=True)
        contents = {
            "step": int(step),
            "extra": deepcopy(dict(extra)),
            "optimizer": kind_of(optimizer),
            "parameters": {name: vars(saved) for name, saved in merge(of_parameters).items()},
            "remembered": {key: vars(saved) for key, saved in merge(remembered).items()},
        }
    return Begun(partial, contents)


def in_steps(
    begun: Begun, plan: WritePlan, write_file: Callable[[Path], Written], group: ProcessGroup, keep: int
) -> Steps:
    """Write; then seal, and delete what is too old. All ranks take these steps together; see `proceed`.

    Args:
        begun: by all ranks together.
        plan: whose metadata is written.
        write_file: writes this rank's file into a folder.
        group: all ranks.
        keep: so many of the last checkpoints stay in the folder, this one included.

    Returns:
        The checkpoint.

    Raises:
        BadInput: on every rank. Nothing is left of what was not sealed, and what was there before is there still.
    """
    partial, first = begun.partial, dist.get_rank(group) == 0
    with or_nothing_is_left(partial.parent, begun.contents["step"], [partial], group):
        if keep < 1:
            raise BadInput(f"a folder keeps 1 checkpoint or more, not {keep}")
        written = yield lambda: write_file(partial)
        sealed = yield lambda: seal_and_keep(begun, plan, written, keep) if first else None
    checkpoint, failure = sealed[0]
    if failure:
        raise BadInput(f"{checkpoint} was saved, but an old one could not be deleted: {failure}")
    return checkpoint


def seal_and_keep(begun: Begun, plan: WritePlan, written: list[Written], keep: int) -> tuple[Path, str]:
    """Give a checkpoint its name, then delete what is too old. Returns it, and why that failed; "" if it did not."""
    checkpoint = seal(begun.partial, plan, written, begun.contents)
    try:
        checkpoint_folder.keep_last(checkpoint.parent, keep)
    except OSError as error:
        return checkpoint, f"rank 0: {error}"
    return checkpoint, ""


@contextmanager
def or_nothing_is_left(folder: Path, step: int, place: list[Path], group: ProcessGroup) -> Iterator[None]:
    """Where a save fails on all ranks together, rank 0 gives back its place, and all say what there is instead."""
    try:
        yield
    except BadInput as error:
        by_first(lambda: [checkpoint_folder.discard(partial) for partial in place], group)
        last = latest(folder) or "none"
        raise BadInput(f"step {step} was not saved: {error}; the last checkpoint is {last}") from None


def at_once(begun: Begun, chunks: Chunks, group: ProcessGroup, keep: int) -> Path:
    """Take all steps of a save, one after another. All ranks call this together. Returns the checkpoint."""
    plan = plan_of(chunks, group)
    steps = in_steps(begun, plan, lambda partial: write(partial, plan, chunks), group, keep)
    do = next(steps)
    while callable(do):
        do = proceed(steps, do, group)
    return do


def proceed(steps: Steps, done: Callable[[], Any], group: ProcessGroup) -> Callable[[], Any] | Path:
    """Tell all ranks what has come of a step, and go to the next. All ranks call this together.

    Args:
        steps: of a save.
        done: does this step on this rank; or waits until it is done, and returns or raises what came of it.

    Returns:
        What this rank does next, by itself; the checkpoint where the save has ended.

    Raises:
        BadInput: on every rank, if it cannot be saved.
    """
    try:
        results = together(done, group)
    except BadInput as error:
        return steps.throw(error)
    try:
        return steps.send(results)
    except StopIteration as end:
        return end.value


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

    checkpoint, contents = by_first(lambda: found(Path(folder)), group)
    if "base" in contents:
        raise BadInput(f"{checkpoint} holds only what has changed since {contents['base']['name']}: load it as such")
    saved = require_fit(checkpoint, contents, form, optimizer, group)
    chunks, memory = empty_chunks(saved_parts(form, optimizer), saved), rooms(form, remembered_in(contents))
    read(checkpoint, {**chunks, **{key: chunk for room in memory for key, chunk in room.items()}}, group)
    install(saved_parts(form, optimizer), optimizer, saved, chunks)
    install_remembered(form, memory)
    form.end_step()
    return contents["step"], contents["extra"]


def found(place: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint in a place, and what it says of itself.

    Raises:
        BadInput: if there is none, or it is damaged.
    """
    checkpoint = checkpoint_folder.find(place)
    return checkpoint, checkpoint_folder.contents(checkpoint)


def require_fit(
    checkpoint: Path, contents: Mapping[str, Any], form: GradientSync, optimizer: Optimizer, group: ProcessGroup
) -> dict[str, SavedParameter]:
    """See that a checkpoint is of this model and this optimizer. All ranks call this together.

    Returns:
        What was saved of each parameter.

    Raises:
        BadInput: the same on every rank, with the first difference.
    """
    if contents["optimizer"] != kind_of(optimizer):
        raise BadInput(f"{checkpoint} was saved with {contents['optimizer']}, and this is {kind_of(optimizer)}")
    saved = {name: SavedParameter.from_json(**each) for name, each in contents["parameters"].items()}
    if unlike := difference(saved, merge(together(lambda: describe(saved_parts(form, optimizer), {}), group))):
        raise BadInput(f"{checkpoint} is of another model: {unlike}")
    if missing := next(filter(None, together(lambda: lacking(form.parts, optimizer, saved), group)), None):
        raise BadInput(f"{checkpoint} was saved with {contents['optimizer']} that kept {missing}")
    return saved


def remembered_in(contents: Mapping[str, Any]) -> dict[str, SavedParameter]:
    """What a form has remembered, by key, as a checkpoint tells of it; nothing in an older one."""
    return {key: SavedParameter.from_json(**each) for key, each in contents.get("remembered", {}).items()}


def read(checkpoint: Path, chunks: Mapping[str, Any], group: ProcessGroup) -> None:
    """Compare every byte of a checkpoint with its checksum, each rank a share of the files; then read into `chunks`.

    Raises:
        BadInput: the same on every rank, if a file is damaged or cannot be read.
    """
    share = checkpoint_folder.files(checkpoint)[dist.get_rank(group) :: dist.get_world_size(group)]
    together(lambda: checkpoint_folder.verify(checkpoint, share), group)
    through_dcp(lambda: dcp.load(dict(chunks), storage_reader=dcp.FileSystemReader(checkpoint), process_group=group))


def through_dcp(do: Callable[[], Any]) -> None:
    """Load. DCP tells every rank what has failed on any of them, by an exception that is no `Exception`.

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

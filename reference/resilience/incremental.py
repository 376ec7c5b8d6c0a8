"""Checkpoints that hold only what has changed since the last full one.

    000004-step-400/    full
    000005-step-500/    what has changed since 000004
    000006-step-600/    what has changed since 000004, too: a load reads two checkpoints, and no long chain

What a rank holds is looked at in blocks of rows, each with its checksum. A block whose checksum is that of the full
checkpoint is not written again; those between that have changed are written as one. So this costs a pass over the state
in each save, and saves what did not change: rows of an embedding that no token has asked for, layers that do not learn.
It saves nothing where an optimizer touches everything in every step, as AdamW does with weight decay, or with moments
that fade; SGD and Adagrad leave alone what has no gradient. (Check-N-Run writes such checkpoints for recommendation
models, which are embeddings almost alone, and where a hundredth of the rows changes between two of them.)

An increment names the full checkpoint that it adds to, and the checksum of that one's list of checksums. Where it is
gone, damaged or another one, a load says so by name, and nothing has changed.

Eisenman et al. 2022, "Check-N-Run: a checkpointing system for training deep learning recommendation models" (NSDI),
arXiv 2010.08679.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import GradientSync
from reference.errors import BadInput
from reference.zero import checkpoint_folder
from reference.zero.agreement import anywhere, by_first, together
from reference.zero.checkpoint import at_once, begin, found, read, remembered_in, require_fit
from reference.zero.checkpoint_folder import SUMS, Fingerprint
from reference.zero.checkpoint_remembered import held_parts, rooms
from reference.zero.checkpoint_remembered import install as install_remembered
from reference.zero.checkpoint_state import empty_chunks, held_chunks, install, saved_parts
from reference.zero.checkpoint_write import Chunks

Place = tuple[str, tuple[int, ...]]
"""A block: the name of a tensor in the checkpoint, and where in it the block begins."""


class IncrementalCheckpoints:
    """The checkpoints of one run, most of them increments. All ranks call `save` together, between two steps.

    Args:
        folder: of checkpoints, of this run alone, the same one for all ranks.
        form: whose masters to save.
        optimizer: over these masters.
        group: all ranks of the form.
        full_every: of so many checkpoints, the first is full.
        keep: so many of the last checkpoints stay, and the full ones that they add to.
        block: bytes of a block, about.
    """

    def __init__(
        self,
        folder: Path | str,
        form: GradientSync,
        optimizer: Optimizer,
        group: ProcessGroup,
        full_every: int = 10,
        keep: int = 2,
        block: int = 16384,
    ) -> None:
        if full_every < 1:
            raise BadInput(f"of 1 checkpoint or more the first is full, not of {full_every}")
        self.folder, self.form, self.optimizer, self.group = Path(folder), form, optimizer, group
        self.full_every, self.keep, self.block = full_every, keep, block
        self._base: Path | None = None  # the last full one
        self._checksums: dict[Place, bytes] = {}  # of its blocks, as far as this rank holds them
        self._since = 0  # increments to it

    def save(self, step: int, extra: Mapping[str, Any]) -> Path:
        """Save a checkpoint, a full one if it must be. Arguments and errors as for `reference.zero.checkpoint.save`."""
        chunks = held_chunks(held_parts(self.form, self.optimizer), self.optimizer.state)
        now = {place: checksum(block) for place, block in blocks_of(chunks, self.block)}
        if self._must_be_full(now):
            saved = self._write(step, extra, {}, chunks)
            self._base, self._checksums, self._since = saved, now, 0
            return saved
        blocks = blocks_of(chunks, self.block)
        changed = joined((place, block) for place, block in blocks if now[place] != self._checksums[place])
        boxes = together(lambda: {key(place): (*place, tuple(x.shape)) for place, x in changed.items()}, self.group)
        base = {"name": self._base.name, "sums": by_first(lambda: sums_of(self._base), self.group)}
        adds = {"base": base, "changed": {name: box for mine in boxes for name, box in mine.items()}}
        saved = self._write(step, extra, adds, {key(place): block for place, block in changed.items()})
        self._since += 1
        return saved

    def _must_be_full(self, now: Mapping[Place, bytes]) -> bool:
        """Whether an increment would not do, for any rank: the time has come, or the base or a tensor is another."""
        due = self._base is None or self._since + 1 >= self.full_every or now.keys() != self._checksums.keys()
        return anywhere([due or not is_there(self._base)], self.group)[0]

    def _write(
        self, step: int, extra: Mapping[str, Any], adds: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> Path:
        """Save these tensors, and what an increment says of what it adds to."""
        begun = begin(self.folder, self.form, self.optimizer, step, extra, self.group)
        begun = replace(begun, contents={**begun.contents, **adds})
        return at_once(begun, tensors, self.group, self.keep)


def load(
    folder: Path | str, form: GradientSync, optimizer: Optimizer, group: ProcessGroup
) -> tuple[int, dict[str, Any]]:
    """Load the newest checkpoint, full or not. All ranks call this together.

    Arguments, result and errors as for `reference.zero.checkpoint.load`.

    Raises:
        BadInput: besides, if what it adds to is not there, or is another one. Nothing has changed then.
    """
    (checkpoint, contents), base = by_first(lambda: with_base(Path(folder)), group)
    saved = require_fit(checkpoint, contents, form, optimizer, group)
    chunks, memory = empty_chunks(saved_parts(form, optimizer), saved), rooms(form, remembered_in(contents))
    both = {**chunks, **{key: chunk for room in memory for key, chunk in room.items()}}
    read(base, both, group)
    if base != checkpoint:
        overlay(checkpoint, contents["changed"], both, group)
    install(saved_parts(form, optimizer), optimizer, saved, chunks)
    install_remembered(form, memory)
    form.end_step()
    return contents["step"], contents["extra"]


def with_base(place: Path) -> tuple[tuple[Path, dict[str, Any]], Path]:
    """The checkpoint in a place with its contents, and the one that it adds to: itself, if it is full.

    Raises:
        BadInput: if either is missing or damaged.
    """
    checkpoint, contents = found(place)
    if "base" not in contents:
        return (checkpoint, contents), checkpoint
    base = checkpoint.with_name(contents["base"]["name"])
    if not base.is_dir():
        raise BadInput(f"{checkpoint} holds only what has changed since {base}, which is not there")
    checkpoint_folder.contents(base)
    if sums_of(base) != contents["base"]["sums"]:
        raise BadInput(f"{checkpoint} holds only what has changed since {base}, and that is another one now")
    return (checkpoint, contents), base


def overlay(checkpoint: Path, changed: Mapping[str, list], chunks: Chunks, group: ProcessGroup) -> None:
    """Read the blocks of an increment that lie where this rank has something, and put them there."""
    wanted = {
        name: torch.empty(sizes, dtype=chunks[of].dtype)
        for name, (of, begins, sizes) in changed.items()
        if of in chunks and any(shared(chunks[of].pieces, begins, sizes))
    }
    read(checkpoint, wanted, group)
    for name, block in wanted.items():
        of, begins, sizes = changed[name]
        for values, there, here in shared(chunks[of].pieces, begins, sizes):
            values[there].copy_(block[here])


def shared(
    pieces: Mapping[torch.Size, Tensor], begins: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[Tensor, tuple[slice, ...], tuple[slice, ...]]]:
    """What a block and a rank's pieces of a tensor have in common: the piece's values, where in them, where in it."""
    for offset, values in pieces.items():
        low = [max(pair) for pair in zip(offset, begins, strict=True)]
        ends = zip(offset, values.shape, begins, sizes, strict=True)
        high = [min(a + length, b + size) for a, length, b, size in ends]
        if all(begin < end for begin, end in zip(low, high, strict=True)):
            edges = list(zip(low, high, strict=True))
            there = tuple(slice(x - a, y - a) for (x, y), a in zip(edges, offset, strict=True))
            yield values, there, tuple(slice(x - b, y - b) for (x, y), b in zip(edges, begins, strict=True))


def blocks_of(chunks: Chunks, size: int) -> Iterator[tuple[Place, Tensor]]:
    """What a rank holds, some rows at a time: at least one, and about `size` bytes."""
    for name, chunk in chunks.items():
        for offset, values in chunk.pieces.items():
            rows = max(1, size // values[0].nbytes)
            for number, block in enumerate(values.split(rows)):
                yield (name, (offset[0] + number * rows, *offset[1:])), block


def joined(blocks: Iterable[tuple[Place, Tensor]]) -> dict[Place, Tensor]:
    """Copies of blocks, of which those that follow each other are one: each costs the checkpoint about 1 KB besides."""
    runs: list[tuple[Place, list[Tensor]]] = []
    for (name, begins), block in blocks:
        (of, at), run = runs[-1] if runs else (("", ()), [])
        if run and (name, begins) == (of, (at[0] + sum(map(len, run)), *at[1:])) and block[0].shape == run[0][0].shape:
            run.append(block)
        else:
            runs.append(((name, begins), [block]))
    return {place: torch.cat(run) for place, run in runs}


def checksum(block: Tensor) -> bytes:
    """Of every bit of a tensor, wherever it is."""
    return hashlib.sha256(block.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()).digest()


def key(place: Place) -> str:
    """What a block is called in a checkpoint."""
    name, begins = place
    return f"{name} at {', '.join(map(str, begins))}"


def sums_of(checkpoint: Path) -> str:
    """By which one knows whether a checkpoint is the one that it was."""
    return Fingerprint.of(checkpoint / SUMS).sha256


def is_there(checkpoint: Path) -> bool:
    """Whether a checkpoint is complete."""
    try:
        checkpoint_folder.contents(checkpoint)
    except BadInput:
        return False
    return True

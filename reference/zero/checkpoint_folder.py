"""A folder of checkpoints whose last good one survives whatever happens.

    run/
        000003-step-200/           checkpoint 3, taken after step 200
            __0_0.distcp …         the elements, a file from each rank
            .metadata              which of them are where
            manifest.json          what they are; and how large each of these files must be
            SHA256SUMS             what each of these files must hold; to check by hand: sha256sum -c SHA256SUMS
        000004-step-300/
        .000005-partial/           is being written, or was when its writer died; the next save clears it away

A machine may stop between any two instructions, a disk be full at any byte. So (Pillai et al. 2014, "All file systems
are not created equal: on the complexity of crafting crash-consistent applications"):

1. What is not finished has a name that no reader looks for.
2. Every byte is on the disk (`fsync`) before the folder gets its name. A rename happens whole or not at all.
3. Nothing is overwritten: numbers count up. An old checkpoint loses its name before it loses its files.
4. A reader trusts nothing: sizes and checksums are compared before anything is used.

One run at a time writes to a folder. It takes the room of one checkpoint more than are kept.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.errors import BadInput

FORMAT = 3  # of manifest.json; until 2 every parameter was saved as a matrix
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_NUMBER = re.compile(r"\.?(\d{6,})-")


@dataclass(frozen=True)
class Fingerprint:
    """By which one knows whether a file is as it was written."""

    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Fingerprint":
        """Read a file from beginning to end."""
        with path.open("rb") as file:
            return cls(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())

    @classmethod
    def of_bytes(cls, data: memoryview) -> "Fingerprint":
        """Of a file that is to hold these bytes."""
        return cls(data.nbytes, hashlib.sha256(data).hexdigest())


def begin(folder: Path) -> Path:
    """Make a place to write the next checkpoint to, and clear away what crashes have left.

    Raises:
        OSError: if that cannot be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = os.listdir(folder)
    numbers = [int(found[1]) for name in names if (found := _NUMBER.match(name))]
    for leftover in names:
        if leftover.startswith(".") and leftover.endswith("-partial"):
            shutil.rmtree(folder / leftover)
    partial = folder / f".{max(numbers, default=0) + 1:06}-partial"
    partial.mkdir()
    return partial


def finish(partial: Path, step: int, contents: Mapping[str, Any], files: Mapping[str, Fingerprint]) -> Path:
    """Seal what was written, and give it the name by which it is found.

    Args:
        partial: where `begin` said, with all `files`, which are on the disk.
        step: of training, after which it was taken.
        contents: what JSON can hold.
        files: all there are.

    Returns:
        The checkpoint.

    Raises:
        OSError: if it cannot be; then there is no such checkpoint.
    """
    sizes = {name: written.size for name, written in files.items()}
    if sizes != {name: (partial / name).stat().st_size for name in os.listdir(partial)}:
        raise OSError(f"{partial} does not have the files that the ranks wrote: is it the same folder for all?")
    _write(partial / MANIFEST, json.dumps({"format": FORMAT, "files": sizes, "contents": contents}, indent=1))
    sums = {name: written.sha256 for name, written in files.items()}
    sums[MANIFEST] = Fingerprint.of(partial / MANIFEST).sha256
    _write(partial / SUMS, "".join(f"{sha256}  {name}\n" for name, sha256 in sums.items()))
    _sync(partial)
    number = _NUMBER.match(partial.name)[1]
    checkpoint = partial.rename(partial.with_name(f"{number}-step-{step}"))
    _sync(checkpoint.parent)
    return checkpoint


def discard(partial: Path) -> None:
    """Give back the room of a checkpoint that could not be finished."""
    shutil.rmtree(partial, ignore_errors=True)  # what is left goes with the next `begin`


def keep_last(folder: Path, count: int) -> None:
    """Delete complete checkpoints, the oldest first, until there are `count`. Damaged ones stay, and count nothing.

    What one of those that stay adds to (its "base") stays, too.

    Raises:
        OSError: if that cannot be.
    """
    found = readable(folder)
    needed = {kept["base"]["name"] for kept in [*found.values()][-count:] if "base" in kept}
    for old in [*found][:-count]:
        if old.name not in needed:
            shutil.rmtree(old.rename(old.with_name(f".{old.name}-partial")))


def checkpoints(folder: Path) -> list[Path]:
    """Whatever has a checkpoint's name, the oldest first."""
    return sorted((path for path in folder.glob("*-step-*") if _NAME.fullmatch(path.name)), key=_number)


def complete(folder: Path) -> list[Path]:
    """The checkpoints that have all their files in full length, the oldest first. What files hold is not looked at."""
    return [*readable(folder)]


def readable(folder: Path) -> dict[Path, dict[str, Any]]:
    """The complete checkpoints, the oldest first, with their contents."""
    found = {}
    for checkpoint in checkpoints(folder):
        try:
            found[checkpoint] = contents(checkpoint)
        except BadInput:
            continue
    return found


def damages(folder: Path) -> list[str]:
    """What is wrong with the checkpoints that are newer than the newest complete one, the newest first."""
    found: list[str] = []
    for checkpoint in checkpoints(folder)[::-1]:
        try:
            contents(checkpoint)
        except BadInput as error:
            found.append(str(error))
        else:
            break
    return found


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint; None where there is none."""
    return next(iter(complete(Path(folder))[::-1]), None)


def find(place: Path) -> Path:
    """The checkpoint that `place` is, or else the newest one in that folder.

    Raises:
        BadInput: if there is none; with what is wrong with those that are not complete.
    """
    if (_NAME.fullmatch(place.name) and place.is_dir()) or (place / SUMS).exists():
        return place
    if checkpoint := latest(place):
        return checkpoint
    raise BadInput("; ".join(damages(place)) or f"there is no checkpoint in {place}")


def contents(checkpoint: Path) -> dict[str, Any]:
    """What `finish` was given. Compares the sizes of all files, and the checksum of the manifest.

    Raises:
        BadInput: if something is missing, too short or too long.
    """
    try:
        sums = _sums(checkpoint)
        if Fingerprint.of(checkpoint / MANIFEST).sha256 != sums.get(MANIFEST):
            raise _damaged(checkpoint, f"{MANIFEST} does not hold what was written")
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise BadInput(f"{checkpoint} has format {manifest['format']}, and this program reads format {FORMAT}")
        if sums.keys() != {*manifest["files"], MANIFEST}:
            raise _damaged(checkpoint, f"{SUMS} does not hold what was written")
        for name, size in manifest["files"].items():
            if (found := (checkpoint / name).stat().st_size) != size:
                raise _damaged(checkpoint, f"{name} has {found:,} bytes of {size:,}")
    except OSError as error:
        raise _damaged(checkpoint, f"{Path(error.filename or checkpoint).name}: {error.strerror or error}") from None
    return manifest["contents"]


def files(checkpoint: Path) -> list[str]:
    """The files whose checksums are known, in order of their names."""
    return sorted(_sums(checkpoint))


def verify(checkpoint: Path, names: Iterable[str]) -> None:
    """Read these files, and compare each with its checksum.

    Raises:
        BadInput: if one of them holds something else than what was written. It names another checkpoint, if one is
            complete.
    """
    sums = _sums(checkpoint)
    for name in names:
        if Fingerprint.of(checkpoint / name).sha256 != sums[name]:
            others = [other for other in complete(checkpoint.parent) if other != checkpoint]
            advice = f"; move it elsewhere, and {others[-1]} is the newest" if others else ""
            raise _damaged(checkpoint, f"{name} does not hold what was written{advice}")


def _number(checkpoint: Path) -> int:
    return int(_NAME.fullmatch(checkpoint.name)[1])


def _sums(checkpoint: Path) -> dict[str, str]:
    lines = (checkpoint / SUMS).read_text(errors="replace").splitlines()
    return {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}


def _damaged(checkpoint: Path, what: str) -> BadInput:
    return BadInput(f"{checkpoint} is damaged: {what}")


def _write(path: Path, text: str) -> None:
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""What learners have handed in: one text for each learner and puzzle. It is read, never run, and nothing is written.

Below a folder there is for each learner a folder, a zip file or a notebook. In these, a text is a puzzle's by its name:
`puzzles/ranks/pair.py`, else `ranks/pair.py`, else `pair.py`, else a notebook's cell below `%%puzzle ranks.pair`. What
can't be used gets one line in `remarks`, and all else is graded.
"""

import difflib
import functools
import io
import json
import os
import stat
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath

from puzzles import catalog
from puzzles.grading import rules, text
from reference.errors import BadInput

MOST_FILES = 20_000  # in a submission: a whole copy of the course has a tenth of that
MOST_CELLS = 1_000  # of puzzles, in a notebook
MOST_BYTES = 64 << 20  # of all that is read of a submission
_LARGEST = {".py": 4 * rules.MAX_TEXT, ".ipynb": 16 << 20}  # bytes of a file: four for each character of UTF-8
_OF_THE_COURSE = {"capstone", "catalog", "docs", "grading", "reference", "tests", "visualizations", "rankwise"}
_JUNK = {"__pycache__", "__MACOSX", "node_modules", "site-packages"}
_KINDS = (".zip", ".ipynb")  # of a file that is a submission
_OF_GRADESCOPE = "submission_metadata.json"  # stands beside the folder with a learner's files
_HELPERS = {"__init__.py", "conftest.py", "handmade.py", "test_puzzles.py"}  # of a copy of the course
_UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # no further than asked: the others, a whole bomb at once
_CLOSE = 0.75  # how alike two names are where one may be a slip of the other
_MAGIC = "%%puzzle"


@dataclass
class Submission:
    """What one learner has handed in.

    Attributes:
        learner: the name of the folder or file.
        texts: by puzzle, the text to grade.
        remarks: a line for each thing that could not be used.
        received: when the newest of the texts was written, in seconds since 1970; of a zip file, when the file was.
    """

    learner: str
    texts: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    received: float = 0.0


@dataclass(frozen=True)
class _File:
    """A file of a submission: its path there, when it was written, and how it is read, up to so many bytes."""

    path: PurePosixPath
    written: float
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class _Found:
    """A text that may be a puzzle's solution; of the lowest `rank` is the one that counts."""

    rank: int
    place: str
    source: str
    written: float


class Unusable(Exception):
    """Why a file can't be used, in one line."""


class TooMuch(Unusable):
    """Why no more of a submission is read, in one line."""


def read(folder: Path, wanted: Collection[str]) -> list[Submission]:
    """All submissions below a folder, by the learners' names; the folder itself, where it holds puzzle files.

    Args:
        wanted: names of the puzzles that are graded.

    Raises:
        BadInput: the folder can't be read, or there is no submission in it.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BadInput(f"{folder} can't be read: {(error.strerror or str(error)).lower()}") from None
    if _is_one(entries) or (folder.resolve().parent / _OF_GRADESCOPE).exists():
        return [_submission(_printable(folder.resolve().name), Path(folder), wanted)]
    entries = [entry for entry in entries if not (entry.name.startswith(".") or entry.name in _JUNK)]
    if not any(entry.is_dir() or _kind(entry) in _KINDS for entry in entries):
        raise BadInput(f"{folder} has no submissions: each learner has a folder, a zip file or a notebook in it")
    found: dict[str, Submission] = {}
    for entry in entries:
        name, stem = _printable(entry.name), _printable(Path(entry.name).stem)
        learner = name if entry.is_dir() or stem in found else stem
        found[learner] = _submission(learner, Path(entry.path), wanted)
    return list(found.values())


def _is_one(entries: list[os.DirEntry]) -> bool:
    """True for a folder that is itself a submission: it has puzzle files, or chapters, or `puzzles`."""
    files = (f"{each}.py" for name in catalog.names() for each in (name, name.partition(".")[2]))
    theirs = {*catalog.CHAPTERS, "puzzles", *files}
    return any(entry.name in theirs for entry in entries)


def _kind(file: os.DirEntry | PurePath) -> str:
    """What the name of a file ends in: ".zip", also of `ALICE.ZIP`."""
    return PurePath(file.name).suffix.lower()


def _printable(said: str) -> str:
    """A name, or what quotes one, as text that can be written: names of files need not be UTF-8."""
    return said.encode("utf-8", "backslashreplace").decode()


def _submission(learner: str, path: Path, wanted: Collection[str]) -> Submission:
    """What is in a learner's folder, zip file or notebook."""
    one = Submission(learner)
    if path.is_symlink():
        one.remarks.append(f"{_printable(path.name)} is a link: links are not followed")
        return one
    candidates: dict[str, list[_Found]] = defaultdict(list)
    try:
        _collect(one, path, candidates, wanted)
    except Unusable as why:
        one.remarks.append(str(why))
    except OSError as error:
        one.remarks.append(f"{path.name} can't be read: {(error.strerror or str(error)).lower()}")
    for name, found in candidates.items():
        _choose(one, name, found)
    if not candidates and not one.remarks:
        one.remarks.append("no puzzle file is in it")
    one.remarks = list(map(_printable, one.remarks))
    return one


def _collect(one: Submission, path: Path, candidates: dict[str, list[_Found]], wanted: Collection[str]) -> None:
    room = _Room(MOST_BYTES)
    for number, file in enumerate(_files(path, one.remarks)):
        if number >= MOST_FILES:
            raise TooMuch(f"more than {MOST_FILES:,} files: the rest was not read")
        if not _may_be_theirs(file.path):
            continue
        file = replace(file, read=functools.partial(room.read, file.read))
        try:
            texts = [] if _kind(file.path) not in _LARGEST else _texts(file, one.remarks, wanted)
        except TooMuch:
            raise
        except Unusable as why:
            one.remarks.append(f"{file.path}: {why}")
            continue
        for name, found in texts:
            candidates[name].append(found)


class _Room:
    """How many bytes of a submission may still be read."""

    def __init__(self, left: int) -> None:
        self.left = left

    def read(self, read: Callable[[int], bytes], most: int) -> bytes:
        """Read a file. Raises TooMuch where the room is used up."""
        data = read(most)
        self.left -= len(data)
        if self.left < 0:
            raise TooMuch(f"more than {MOST_BYTES:,} bytes of text: the rest was not read")
        return data


def _may_be_theirs(path: PurePosixPath) -> bool:
    """False for what programs leave, and for the course's own rooms: a copy of it may have the name of one."""
    parts = path.parts
    rooms = parts[parts.index("puzzles") + 1 :] if "puzzles" in parts else parts
    return not any(map(_is_junk, parts)) and _OF_THE_COURSE.isdisjoint(rooms)


def _is_junk(name: str) -> bool:
    return name in _JUNK or name.startswith(".")


def _files(path: Path, remarks: list[str]) -> Iterator[_File]:
    """The files of a submission, in the order of their names. Raises Unusable, OSError."""
    if path.is_dir():
        yield from _of_folder(path, remarks)
    elif _kind(path) == ".zip":
        yield from _of_zip(path, PurePosixPath(), remarks)
    elif _kind(path) in _KINDS:
        yield _on_disk(path, PurePosixPath(path.name))
    else:
        raise Unusable(f"{path.name} is no folder, zip file or notebook")


def _of_folder(root: Path, remarks: list[str]) -> Iterator[_File]:
    for folder, below, files in os.walk(root):
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        below[:] = sorted(name for name in below if not _is_junk(name))
        for name in below + sorted(files):
            at = Path(folder, name)
            if at.is_symlink():
                if _kind(at) in _LARGEST or name in below:
                    remarks.append(f"{here / name} is a link: links are not followed")
            elif _kind(at) in _LARGEST and name not in below:
                yield _on_disk(at, here / name)
            elif _kind(at) == ".zip" and name not in below:
                try:
                    yield from _of_zip(at, here, remarks)
                except Unusable as why:
                    remarks.append(str(why))


def _on_disk(path: Path, shown: PurePosixPath) -> _File:
    def read(most: int) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise Unusable(f"it can't be read: {(error.strerror or str(error)).lower()}") from None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unusable("it is no file, but a pipe or a device")
            return file.read(most)

    return _File(shown, path.lstat().st_mtime, read)


def _of_zip(path: Path, above: PurePosixPath, remarks: list[str]) -> Iterator[_File]:
    """The members of a zip file: they are unpacked in memory, and no further than they may be long. Raises Unusable."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Unusable(f"{path.name} is no file, but a pipe or a device")
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Unusable(f"{above / path.name} is no zip file that can be read: {error}") from None
    with archive:
        if len(archive.infolist()) > MOST_FILES:
            raise TooMuch(f"{above / path.name} has more than {MOST_FILES:,} files: it was not read")
        for member in sorted(archive.infolist(), key=lambda each: each.filename):
            inside = PurePosixPath(member.filename.replace("\\", "/"))
            shown = f"{above / path.name}: {member.filename[:200]!r}"
            if _kind(inside) not in (*_LARGEST, ".zip") or member.is_dir():
                continue
            if inside.is_absolute() or ".." in inside.parts or ":" in inside.parts[0]:
                remarks.append(f"{shown} leads out of the zip file: it was not read")
            elif stat.S_ISLNK(member.external_attr >> 16):
                remarks.append(f"{shown} is a link: links are not followed")
            elif _kind(inside) == ".zip":
                remarks.append(f"{shown} is a zip file inside a zip file: it was not read")
            elif member.compress_type not in _UNPACKED:
                remarks.append(f"{shown} is packed by another method than deflate: it was not read")
            else:
                yield _File(above / inside, path.lstat().st_mtime, _unpacking(archive, member))


def _unpacking(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        try:
            with archive.open(member) as file:
                return file.read(most)
        except RuntimeError:
            raise Unusable("it is encrypted") from None
        except Exception as error:  # whatever a damaged member makes of an unpacker
            raise Unusable(f"it can't be unpacked: {str(error)[:100]}") from None

    return read


def _texts(file: _File, remarks: list[str], wanted: Collection[str]) -> list[tuple[str, _Found]]:
    """The solutions in a file, each with its puzzle's name. Raises Unusable."""
    if _kind(file.path) == ".ipynb":
        return list(_cells(file, remarks, wanted))
    named = _named(file.path)
    if named is None:
        slip = _slip(file.path)
        if slip:
            remarks.append(slip)
        return []
    name, rank = named
    if name not in wanted:
        return []
    return [(name, _Found(rank, str(file.path), _decoded(file), file.written))]


def _named(path: PurePosixPath) -> tuple[str, int] | None:
    """The puzzle that a path names, and how well: 0 as the course has it, 1 in a chapter's folder, 2 by its name."""
    chapter = path.parent.name
    if (name := f"{chapter}.{path.stem}") in catalog.names():
        return name, 0 if path.parent.parent.name == "puzzles" else 1
    if chapter in catalog.CHAPTERS:
        return None
    if path.stem in catalog.names():
        return path.stem, 2
    ends = [name for name in catalog.names() if name.partition(".")[2] == path.stem]
    return (ends[0], 2) if len(ends) == 1 else None


def _slip(path: PurePosixPath) -> str:
    """What to say of a file that is no puzzle's, where it looks like one; "" where it does not."""
    if path.name in _HELPERS or not (path.parent.name in catalog.CHAPTERS or len(path.parts) <= 2):
        return ""
    ends = [name for name in catalog.names() if name.partition(".")[2] == path.stem]
    if len(ends) > 1 and path.parent.name not in catalog.CHAPTERS:
        return f"{path} may be {' or '.join(ends)}: put it into its chapter's folder"
    by_end = {name.partition(".")[2]: name for name in catalog.names()}
    close = difflib.get_close_matches(path.stem, by_end, n=1, cutoff=_CLOSE)
    return f"{path} is no puzzle's file" + (f": {by_end[close[0]]} is meant?" if close else "")


def _decoded(file: _File) -> str:
    """A file's text, as `rankwise check` reads it. Raises Unusable."""
    most = _LARGEST[_kind(file.path)]
    data = file.read(most + 1)
    if len(data) > most:
        raise Unusable(f"it has more than {most:,} bytes")
    try:
        return io.StringIO(data.decode("utf-8-sig"), newline=None).read()
    except UnicodeDecodeError as error:
        raise Unusable(f"byte {error.start} is not UTF-8; a solution is a file of UTF-8 text") from None


def _cells(file: _File, remarks: list[str], wanted: Collection[str]) -> Iterator[tuple[str, _Found]]:
    """The cells of a notebook below `%%puzzle NAME`, with the imports that they get when they are saved."""
    try:
        cells = json.loads(_decoded(file))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unusable("it is no notebook") from None
    of_puzzles = [source for source in sources if source.split(maxsplit=1)[:1] == [_MAGIC]]
    if len(of_puzzles) > MOST_CELLS:
        raise Unusable(f"it has more than {MOST_CELLS:,} cells {_MAGIC}")
    for source in of_puzzles:
        first, _, below = source.lstrip().partition("\n")
        try:
            name = catalog.canonical(first.partition(_MAGIC)[2].strip())
        except BadInput as error:
            remarks.append(f"{file.path}: {error}")
            continue
        if below != _printable(below):
            remarks.append(f"{file.path}, cell {_MAGIC} {name}: it has characters that UTF-8 has not")
        elif name in wanted and len(below) <= rules.MAX_TEXT:
            below = below if below.endswith("\n") else below + "\n"
            whole = text.with_imports(catalog.find(name), below)
            yield name, _Found(3, f"{file.path}, cell {_MAGIC} {name}", whole, file.written)


def _choose(one: Submission, name: str, found: list[_Found]) -> None:
    """Take the text that counts: of those that are not the stub, the one with the best name, where it is one."""
    puzzle = catalog.find(name)
    begun = [each for each in found if len(each.source) > rules.MAX_TEXT or not text.untouched(puzzle, each.source)]
    if not begun:
        return
    best = [each for each in begun if each.rank == min(other.rank for other in begun)]
    if len({each.source for each in best}) > 1:
        places = " and ".join(each.place for each in best[:2])
        one.remarks.append(f"{name} is there twice and not the same, {places}: neither is graded")
        return
    one.texts[name] = best[0].source
    one.received = max(one.received, best[0].written)

"""A course for those who do not clone: `rankwise init` writes it, and `rankwise update` renews it from a newer package.

It holds what a learner edits: the notebooks, and the puzzles' stubs. The rest is in the package that pip has installed.
`rankwise.json`, on top of it, has a digest of each file as it came, so that an update knows what the learner has edited
since. What an update does with a file:

| edited by   | a puzzle's file   | a notebook                                                | another                |
|-------------|-------------------|-----------------------------------------------------------|------------------------|
| no one      | nothing           | nothing                                                   | nothing                |
| the course  | takes the new one | takes the new one                                         | takes the new one      |
| the learner | stays             | stays                                                     | stays                  |
| both        | stays             | the new one; the learner's goes beside it, lessons/mine/  | nothing at all is done |

Killed at any instant, each file is the old or the new one, and the next update does the rest.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.course import MADE, Course, house
from puzzles.grading.files import write_whole
from reference.errors import BadInput

from .updating import cells, owned, set_beside

README = """# A course on distributed training

```
rankwise lab                  # lesson 01 in JupyterLab, with puzzle files beside it
rankwise check ranks.pair     # a puzzle: yours to write in puzzles/ranks/pair.py, or in the lesson
rankwise update               # after `pip install --upgrade rankwise`: newer lessons; solutions and edits stay
```

`rankwise` tells what else there is, and `rankwise doctor` whether this machine can run it. Type them anywhere here.
With `pip install --constraint constraints.txt 'rankwise[lab]'` you have the versions that the course is tested with.
"""


@dataclass(frozen=True)
class Renewal:
    """What an update did. Paths are relative to the course.

    Attributes:
        new: files that came, or changed, or went.
        kept: the learner's solutions and notebooks that stayed in place.
        beside: edited notebooks that the course has changed, too, and where the learner's are now.
    """

    new: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()


def make(folder: Path) -> int:
    """Write a new course into a folder that is empty or not there. Returns how many files it has.

    Raises BadInput where there is something already, or where nothing can be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is not an empty folder: say another, such as `rankwise init my-course`")
        files = shipped()
        for path, content in files.items():
            write_whole(folder / path, content)
        _note(folder, files)
    except OSError as error:
        raise BadInput(f"{folder} can't be written: {(error.strerror or str(error)).lower()}") from None
    return len(files)


def renew(root: Path) -> Renewal:
    """Bring a course that `make` has written up to what the package has now.

    Raises BadInput, with everything as before, where its note can't be read, or where the learner and the course have
    both changed a file that is not the learner's.
    """
    came, now = _noted(root), shipped()
    edited = {path for path in came.keys() | now.keys() if _edited(root, path, came.get(path), now.get(path))}
    changed = {path for path, content in now.items() if digest(path, content.encode()) != came.get(path)}
    if in_the_way := sorted(path for path in edited & changed if not owned(path)):
        raise BadInput(
            f"you have changed {', '.join(in_the_way)}, and so has the course: move yours away, then update again"
        )
    apart = sorted(path for path in edited & changed if path.endswith(".ipynb"))
    beside = [(path, set_beside(root, root / path)) for path in apart]
    for path in apart:
        write_whole(root / path, now[path])
    new = [path for path, content in now.items() if path not in edited and _put(root, path, content)]
    gone = sorted(path for path in came.keys() - now.keys() - edited if (root / path).exists())
    for path in gone:
        (root / path).unlink()
    _note(root, now)
    return Renewal((*new, *gone), tuple(sorted(edited.difference(apart))), tuple(beside))


def shipped() -> dict[str, str]:
    """By path, each file of a new course, as this package has it."""
    files = {"README.md": README}
    files["constraints.txt"] = (house() / "rankwise" / "constraints.txt").read_text(encoding="utf-8")
    for path in ("puzzles/conftest.py", "puzzles/test_puzzles.py"):  # so that `pytest puzzles` works there, too
        files[path] = (house() / path).read_text(encoding="utf-8")
    for lesson in sorted((house() / "lessons").glob("[0-9]*.ipynb")):
        files[f"lessons/{lesson.name}"] = lesson.read_text(encoding="utf-8")
    for puzzle in map(catalog.find, catalog.names()):
        files[Course(Path()).file(puzzle).as_posix()] = text.stub(puzzle)
    return files


def digest(path: str, content: bytes) -> str:
    """What tells an edited file from one that is not: of a notebook, its cells without what they printed."""
    if path.endswith(".ipynb"):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # damaged: then it is edited
            content = json.dumps(cells(content.decode())).encode()
    return hashlib.sha256(content).hexdigest()


def _edited(root: Path, path: str, came: str | None, now: str | None) -> bool:
    """True where the learner's file is there, and is neither what came nor what would come now."""
    try:
        mine = digest(path, (root / path).read_bytes())
    except FileNotFoundError:  # a file that the learner has deleted is one to begin anew
        return False
    return mine not in (came, now and digest(path, now.encode()))


def _put(root: Path, path: str, content: str) -> bool:
    """Write a file where it is missing or another one. Returns whether it was."""
    place = root / path
    if place.exists() and digest(path, place.read_bytes()) == digest(path, content.encode()):
        return False
    write_whole(place, content)
    return True


def _note(root: Path, files: dict[str, str]) -> None:
    digests = {path: digest(path, content.encode()) for path, content in files.items()}
    write_whole(root / MADE, json.dumps({"version": version("rankwise"), "files": digests}, indent=1) + "\n")


def _noted(root: Path) -> dict[str, str]:
    """The digest of each file as it came."""
    try:
        return dict(json.loads((root / MADE).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(
            f"{root / MADE} is damaged: make a new course with `rankwise init`, and copy your `puzzles` there"
        ) from None

"""Write the stubs that ship: `python -m puzzles.grading.stubs`; `--check` only says which files are not the stub.

For authors of puzzles. It writes a file that is missing, and one that holds an older stub of the same puzzle. What was
edited since the last commit it leaves alone, and a solution also where it was committed; unless the puzzle is a program
to mend, of which nothing tells an older stub from a solution.
"""

import subprocess
import sys
from pathlib import Path

from .. import catalog
from . import text
from .course import Course
from .puzzle import UNWRITTEN, Puzzle

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path = ROOT) -> list[Path]:
    """Write all stubs under `root` that can be written safely. Returns the files that changed."""
    changed = []
    for name in catalog.names():
        puzzle = catalog.find(name)
        path, stub = Course(root).file(puzzle), text.stub(puzzle)
        if not path.exists() or (path.read_text() != stub and _is_older_stub(puzzle, path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(stub)
            changed.append(path)
    return changed


def _is_older_stub(puzzle: Puzzle, path: Path) -> bool:
    """True where git knows the file, it has not been edited since, and nothing is solved in it."""
    if not puzzle.is_to_mend and UNWRITTEN not in path.read_text():
        return False
    command = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", "--", path.name]
    known = subprocess.run(command, capture_output=True).returncode == 0
    command = ["git", "-C", str(path.parent), "diff", "--quiet", "HEAD", "--", path.name]
    return known and subprocess.run(command, capture_output=True).returncode == 0


def stale(root: Path = ROOT) -> list[Path]:
    """The learner's files under `root` that are not the stub: what a release must not have."""
    puzzles = [catalog.find(name) for name in catalog.names()]
    files = {Course(root).file(puzzle): text.stub(puzzle) for puzzle in puzzles}
    return [path for path, stub in files.items() if not path.exists() or path.read_text() != stub]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(f"not the stub: {path.relative_to(ROOT)}" for path in stale()) or None)
    for path in write():
        print(path.relative_to(ROOT))

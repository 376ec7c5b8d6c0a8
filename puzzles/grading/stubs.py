"""Write the stubs that ship: `python -m puzzles.grading.stubs`; `--check` only says which files are not the stub.

For authors of puzzles. It writes a file that is missing, and one that holds an older stub of the same puzzle where git
says so; it never overwrites what a learner has written.
"""

import subprocess
import sys
from pathlib import Path

from .. import catalog
from . import text

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path = ROOT) -> list[Path]:
    """Write all stubs under `root` that can be written safely. Returns the files that changed."""
    changed = []
    for name in catalog.names():
        stub = text.stub(catalog.find(name))
        chapter, _, puzzle = name.partition(".")
        path = root / "puzzles" / chapter / f"{puzzle}.py"
        if not path.exists() or (path.read_text() != stub and _as_committed(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(stub)
            changed.append(path)
    return changed


def _as_committed(path: Path) -> bool:
    """True where git knows the file and it has not been edited since."""
    command = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", "--", path.name]
    known = subprocess.run(command, capture_output=True).returncode == 0
    command = ["git", "-C", str(path.parent), "diff", "--quiet", "HEAD", "--", path.name]
    return known and subprocess.run(command, capture_output=True).returncode == 0


def stale(root: Path = ROOT) -> list[Path]:
    """The learner's files under `root` that are not the stub: what a release must not have."""
    paths = {name: root / "puzzles" / f"{name.replace('.', '/')}.py" for name in catalog.names()}
    return [p for name, p in paths.items() if not p.exists() or p.read_text() != text.stub(catalog.find(name))]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(f"not the stub: {path.relative_to(ROOT)}" for path in stale()) or None)
    for path in write():
        print(path.relative_to(ROOT))

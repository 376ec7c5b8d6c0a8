"""A course of its own in some folder, with all puzzles solved or none, and its lessons run there."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from puzzles import catalog
from puzzles.grading import text

from .answered import needed

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(path.name for path in (ROOT / "lessons").glob("[0-9]*.ipynb"))


def committed(lesson: str) -> str:
    """The notebook as git has it; as it lies there where git has nothing."""
    command = ["git", "-C", str(ROOT), "show", f"HEAD:lessons/{lesson}"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout if found.returncode == 0 else (ROOT / "lessons" / lesson).read_text()


def copy_course(root: Path, solved: bool) -> Path:
    """A course of its own at `root`: what lessons need, pristine, with all puzzles solved or none."""
    leave = shutil.ignore_patterns("__pycache__", ".*", "*.ipynb")
    for room in ("reference", "visualizations", "puzzles", "rankwise", "lessons"):
        shutil.copytree(ROOT / room, root / room, ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", root)
    for lesson in LESSONS:
        (root / "lessons" / lesson).write_text(committed(lesson))
    for puzzle in map(catalog.find, catalog.names()):
        file = root / "puzzles" / puzzle.chapter / f"{puzzle.name.partition('.')[2]}.py"
        file.write_text(text.solution(puzzle) if solved else text.stub(puzzle))
    return root


def keep_needed(course: Path, lesson: str) -> None:
    """Leave a lesson of a course the code cells that can tell whether its puzzles are solved."""
    file = course / "lessons" / lesson
    notebook = json.loads(file.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    keep = needed(["".join(cell["source"]) for cell in code])
    notebook["cells"] = [cell for cell, kept in zip(code, keep, strict=True) if kept]
    file.write_text(json.dumps(notebook))


def executed(course: Path, lesson: str, **variables: str) -> Any:
    """The notebook as it looks after every cell has run, in an environment with these variables besides.

    Its kernel talks over sockets that have names, not numbers. A port is chosen before a kernel starts, and bound when
    it has started: by then another kernel, or a rank, may have taken it, and the kernel dies without a word.

    Raises:
        CellExecutionError: a cell failed.
    """
    import nbformat  # takes longer than torch, and all who collect tests come by here
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(course / "lessons" / lesson, as_version=4)
    places = {"PYTHONPATH": str(course), "IPYTHONDIR": str(course / ".ipython")}
    with tempfile.TemporaryDirectory() as folder:  # a socket's whole path has room for 107 characters
        NotebookClient(
            notebook,
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
            resources={"metadata": {"path": str(course / "lessons")}},
            kernel_name="python3",
            timeout=300,
            record_timing=False,
            coalesce_streams=True,
        ).execute(env=os.environ | places | variables)
    return notebook

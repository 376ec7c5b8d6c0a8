"""`rankwise lessons` and `rankwise lab`: the notebooks."""

import json
import os
import sys
from pathlib import Path


def lessons() -> None:
    """List the lessons, with the question that each begins with."""
    from puzzles.grading.course import here

    for path in sorted((here().root / "lessons").glob("*.ipynb")):
        title, question = opening(path)
        print(f"{path.stem:20} {title}{': ' if question else ''}{question}")


def lab() -> int:
    """Open the lessons in JupyterLab."""
    from importlib.util import find_spec

    from puzzles.grading.course import here
    from reference.errors import BadInput

    root = here().root
    if find_spec("jupyterlab") is None:
        raise BadInput("JupyterLab is not installed: `make setup`, or pip install -e '.[lab]'")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={root}", str(root / "lessons")])


def opening(path: Path) -> tuple[str, str]:
    """Title and first bold sentence of a lesson."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title, _, rest = first.partition("\n")
    bold = rest.split("**")
    return title.lstrip("# "), bold[1] if len(bold) > 2 else ""


COMMANDS = (lessons, lab)

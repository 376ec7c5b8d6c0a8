"""`rankwise lessons` and `rankwise lab`: the notebooks."""

import json
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated

from typer import Argument

FIRST = "lessons/01_ranks.ipynb"
SETTINGS = Path(__file__).resolve().parents[1] / "jupyter"
"""Where JupyterLab looks for other defaults, which its own settings override: long lines of code are wrapped."""
_INDENT = "    "


def lessons() -> None:
    """List the lessons, and what each is about. `rankwise lab` opens them."""
    from puzzles.grading.course import here

    width = shutil.get_terminal_size().columns
    for path in sorted((here().root / "lessons").glob("*.ipynb")):
        title, about = opening(path)
        print(f"{title}  ({path.relative_to(here().root)})")
        print(textwrap.fill(about, width, initial_indent=_INDENT, subsequent_indent=_INDENT))


def lab(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="JUPYTERLAB'S OPTIONS",
            help="Handed on to JupyterLab, such as --no-browser, --port 8889, --ip 0.0.0.0 or --allow-root.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Open lesson 01 in JupyterLab, with all lessons and puzzle files beside it."""
    from importlib.util import find_spec

    from puzzles.grading.course import here
    from reference.errors import BadInput

    root = here().root
    if find_spec("jupyterlab") is None:
        raise BadInput("JupyterLab is not installed: `make setup` in a clone, else pip install 'rankwise[lab]'")
    sys.stdout.flush()
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(SETTINGS), *_config_path()])
    places = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{FIRST}"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *places, *(arguments or [])])


def _config_path() -> list[str]:
    """Where JupyterLab looks for settings as it was told to."""
    return [place for place in os.environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep) if place]


def opening(path: Path) -> tuple[str, str]:
    """Title of a lesson, and the line in italics below it that says what the lesson is about; "" where it has none."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title, _, rest = first.partition("\n")
    about = re.match(r"\s*\*(?!\*)([^*]+)\*\s", f"{rest}\n")
    return title.lstrip("# "), " ".join(about[1].split()) if about else ""


COMMANDS = (lessons, lab)
HANDS_ON = (lab,)

"""`rankwise demo`: what `make demo` shows."""

from pathlib import Path
from typing import Annotated

from typer import Option


def demo(
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder for the pictures that it draws.")] = Path("out/demo"),
) -> int:
    """Train a small GPT on 8 processes of this machine, and prove that it equals one process. Takes a minute."""
    from rankwise.ranks import TRAINING, begin_importing

    begin_importing(TRAINING)
    from rankwise.demo import run

    return run(out)


COMMANDS = (demo,)

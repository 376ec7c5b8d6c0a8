"""`rankwise demo`: what `make demo` shows."""

from pathlib import Path
from typing import Annotated

from typer import Option


def demo(out: Annotated[Path, Option(help="Where the pictures go.")] = Path("out/demo")) -> int:
    """Train a small GPT on 8 ranks of this machine, and prove that it equals one process. A minute."""
    from rankwise.demo import run

    return run(out)


COMMANDS = (demo,)

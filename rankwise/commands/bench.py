"""`rankwise bench`: measure what the README claims, side by side with a peer, in one run."""

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

BENCHMARKS = Path(__file__).resolve().parents[2] / "tests" / "benchmarks"


def bench(
    name: Annotated[
        str,
        Argument(
            help="Which benchmark to run, such as cluster. Without a name, all names are listed.", show_default=False
        ),
    ] = "",
    json: Annotated[
        bool, Option("--json", help="Print the rows as one list of JSON, for programs, instead of a table.")
    ] = False,
) -> int:
    """Measure the numbers in README.md, each beside a peer in the same run. Takes minutes; close other programs."""
    from reference.errors import BadInput

    if not BENCHMARKS.is_dir():
        raise BadInput("benchmarks are not installed with the package: clone the course, then `make setup`")
    files = {path.stem.removeprefix("bench_").replace("_", "-"): path for path in BENCHMARKS.glob("bench_*.py")}
    names = sorted(files)
    if not name:
        print("\n".join(names))
        return 0
    if name not in names:
        raise BadInput(f"there is no benchmark {name!r}: choose one of {', '.join(names)}")
    sys.stdout.flush()
    command = [sys.executable, str(files[name]), *(["--json"] if json else [])]
    os.execv(sys.executable, command)  # so that signals reach the benchmark


COMMANDS = (bench,)

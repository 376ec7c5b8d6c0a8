"""`rankwise trace`: run a function on ranks, and see what they said to each other."""

import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def trace(
    file: Annotated[Path, Argument(help="A Python file.")],
    function: Annotated[str, Option(help="The function of it to run on every rank.")] = "main",
    ranks: Annotated[int, Option(help="How many ranks.")] = 4,
    out: Annotated[Path, Option(help="Where to put the picture and the trace for ui.perfetto.dev.")] = Path(
        "out/trace"
    ),
) -> None:
    """Run a function on watched ranks; print bytes and steps, draw the messages, export for Perfetto."""
    from rankwise.training import require_ranks, require_writable
    from reference.cluster import Cluster
    from reference.errors import BadInput
    from visualizations import timeline

    require_ranks(ranks)
    if not file.is_file():
        raise BadInput(f"there is no file {str(file)!r}")
    picture, exported = out / "timeline.png", out / "trace.json"
    for path in (picture, exported):
        require_writable(path)
    chosen = function_of(file, function)
    with Cluster(ranks, watch=True, timeout=60) as cluster:
        _, said = cluster.trace(chosen)
    for rank in range(ranks):
        sent, received = said.bytes_sent[rank], said.bytes_received[rank]
        print(f"rank {rank}: {len(said.events[rank])} calls, {sent:,} B sent, {received:,} B received")
    print(f"{len(said.messages)} messages in {said.steps} steps")
    timeline.draw(said.timeline()).save(picture)
    said.save(exported)
    print(f"drawn in {picture}; open {exported} at ui.perfetto.dev")


def function_of(file: Path, name: str) -> Callable:
    """A function of a program, which finds the modules beside it as `python FILE` does.

    Raises:
        BadInput: if the file cannot be run, with the line that is to blame; or if there is no such function.
    """
    from reference.errors import BadInput

    sys.path.insert(0, str(file.resolve().parent))
    try:
        found = runpy.run_path(str(file), run_name="rankwise_trace").get(name)
    except (Exception, SystemExit) as error:
        words = error.msg if isinstance(error, SyntaxError) else str(error)  # without the place, which we say
        raise BadInput(f"{place(error, file)}: {type(error).__name__}: {words.partition(chr(10))[0]}") from None
    if not callable(found):
        raise BadInput(f"{file} has no function {name!r}: --function names the one to run")
    return found


def place(error: BaseException, file: Path) -> str:
    """Where a program failed: the place that cannot be read, else its own last line that was run."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    return f"{file}:{lines[-1]}" if lines else str(file)


COMMANDS = (trace,)

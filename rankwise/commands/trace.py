"""`rankwise trace`: run a program on ranks, and see what they said to each other."""

import runpy
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from rankwise.ranks import OnNodes
    from reference.trace import Trace


def trace(
    file: Annotated[Path, Argument(help="A Python file.")],
    function: Annotated[
        str | None,
        Option(
            help="The function of it to run on each rank; by default main, or all of it where it makes its own group."
        ),
    ] = None,
    ranks: Annotated[int, Option(help="How many ranks, unless the program starts them.")] = 4,
    out: Annotated[Path, Option(help="Where to put the picture and the trace for ui.perfetto.dev.")] = Path(
        "out/trace"
    ),
    nodes: Annotated[
        int | None,
        Option(help="Put the ranks on so many nodes: machines on this one, each with a network of its own (Linux)."),
    ] = None,
    link: Annotated[
        str | None, Option(help="With --nodes: the rate of each node's link, such as 200Mbit; 1Gbit by default.")
    ] = None,
    ledger: Annotated[
        bool,
        Option(
            "--ledger",
            help="Print whose parts are in each sum of gradients, against its spec: the function returns what "
            "reference.trace.ledger.record gives it.",
        ),
    ] = False,
) -> None:
    """Run a program on watched ranks; print bytes and steps, draw the messages, export for Perfetto.

    The program may have a function for each rank, be written for torchrun, or start its ranks itself (mp.spawn).
    """
    from rankwise.ranks import begin_importing, require_nodes, require_ranks, where_possible
    from reference.errors import BadInput

    require_ranks(ranks)
    if not file.is_file():
        raise BadInput(f"there is no file {str(file)!r}")
    if file.suffix == ".ipynb":
        raise BadInput(
            f"{file} is a notebook: there `%%ranks {ranks}` runs a cell on ranks; a file of Python is traced"
        )
    own = starts_ranks(file, function)
    if not own:  # else it may change the environment before its ranks start
        begin_importing()
    from rankwise.training import require_writable
    from visualizations import timeline

    picture, exported = out / "timeline.png", out / "trace.json"
    for path in (picture, exported):
        require_writable(path)
    on_nodes = where_possible(require_nodes(nodes, link, None if own else ranks))
    returned, said = traced(file, function, ranks, on_nodes)
    if not any(said.events):
        what = f"{file}: its ranks said nothing to each other, so there is nothing to draw"
        raise BadInput(f"{what}; --function names what each rank runs")
    for rank in range(said.world_size):
        sent, received = said.bytes_sent[rank], said.bytes_received[rank]
        print(f"rank {rank}: {len(said.events[rank])} calls, {sent:,} B sent, {received:,} B received")
    print(f"{len(said.messages)} messages in {said.steps} steps")
    if on_nodes.nodes:
        print_between(said, on_nodes)
    timeline.draw(said.timeline()).save(picture)
    said.save(exported)
    print(f"drawn in {picture}; open {exported} at ui.perfetto.dev")
    if ledger:
        print_ledger(file, returned, said)


def print_ledger(file: Path, returned: list, said: "Trace") -> None:
    """Each sum that the ranks have recorded, and at the end what is wrong.

    Raises:
        BadInput: if they have recorded none, or a sum is wrong: with each fault, and lines that talk along that axis.
    """
    from reference.errors import BadInput
    from reference.trace.ledger import Entry, Ledger

    entries = [entry for of_rank in returned if isinstance(of_rank, list) for entry in of_rank]
    if not entries or not all(isinstance(entry, Entry) for entry in entries):
        raise BadInput(f"{file}: for a ledger, the function returns what reference.trace.ledger.record gives it")
    taken = Ledger(tuple(entries), said)
    rows = [("sum", "of", "along", "counted"), *taken.table()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    if taken.faults:
        raise BadInput("; ".join(taken.faults))
    print("each part is in each sum once")


def print_between(said: "Trace", on_nodes: "OnNodes") -> None:
    """What each node has sent to the others."""
    each = said.world_size // on_nodes.nodes
    sent = [0] * on_nodes.nodes
    for message in said.messages:
        if message.src // each != message.dst // each:
            sent[message.src // each] += message.bytes
    for node, size in enumerate(sent):
        print(f"node {node}: {size:,} B sent to other nodes, over a link of {on_nodes.link}")


def starts_ranks(file: Path, function: str | None) -> bool:
    """Whether a program starts its ranks itself."""
    from rankwise import own_ranks

    return function is None and own_ranks.style_of(source_of(file)) is own_ranks.Style.STARTS


def traced(file: Path, function: str | None, ranks: int, on_nodes: "OnNodes") -> tuple[list, "Trace"]:
    """What the ranks of a program return, and say to each other, however it comes by them.

    Raises:
        BadInput: the program cannot be run.
    """
    from rankwise import own_ranks
    from rankwise.own_ranks import Style
    from reference.cluster import Cluster
    from reference.errors import BadInput

    if starts_ranks(file, function):
        traces = []

        def run(work: list[bytes]) -> None:
            with Cluster(len(work), watch=True, timeout=60, **on_nodes.options) as cluster:
                traces.append(cluster.trace(own_ranks.run_given, work))

        with running(file):
            own_ranks.run_starting(str(file), run)
        if not traces:
            what = f"{file} has started no ranks when it was run"
            raise BadInput(f"{what}; --function names what each rank runs")
        return max(traces, key=lambda made: sum(map(len, made[1].events)))
    with Cluster(ranks, watch=True, timeout=60, **on_nodes.options) as cluster:
        if own_ranks.style_of(source_of(file)) is not Style.FUNCTION:
            return cluster.trace(own_ranks.run_program, str(file), function)
        return cluster.trace(function_of(file, function or "main"))


def function_of(file: Path, name: str) -> Callable:
    """A function of a program, which finds the modules beside it as `python FILE` does.

    Raises:
        BadInput: if the file cannot be run, with the line that is to blame; or if there is no such function.
    """
    from reference.errors import BadInput

    sys.path.insert(0, str(file.resolve().parent))
    with running(file):
        found = runpy.run_path(str(file), run_name="rankwise_trace").get(name)
    if not callable(found):
        raise BadInput(f"{file} has no function {name!r}: --function names the one to run")
    return found


def source_of(file: Path) -> str:
    """The text of a program. Raises BadInput where it is none."""
    with running(file):
        with tokenize.open(file) as lines:
            source = lines.read()
        compile(source, str(file), "exec")
    return source


@contextmanager
def running(file: Path) -> Iterator[None]:
    """Run a program inside. Raises BadInput with its line where it fails."""
    from reference.cluster import ClusterError, RankError
    from reference.errors import BadInput

    try:
        yield
    except (BadInput, ClusterError, RankError):
        raise
    except (Exception, SystemExit) as error:
        words = error.msg if isinstance(error, SyntaxError) else str(error)  # without the place, which we say
        raise BadInput(f"{place(error, file)}: {type(error).__name__}: {words.partition(chr(10))[0]}") from None


def place(error: BaseException, file: Path) -> str:
    """Where a program failed: the place that cannot be read, else its own last line that was run."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    return f"{file}:{lines[-1]}" if lines else str(file)


COMMANDS = (trace,)

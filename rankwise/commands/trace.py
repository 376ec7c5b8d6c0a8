"""`rankwise trace`: run a function on ranks, and see what they said to each other."""

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
    import runpy

    from reference.cluster import Cluster
    from reference.errors import BadInput
    from visualizations import timeline

    if not file.is_file():
        raise BadInput(f"there is no file {str(file)!r}")
    chosen = runpy.run_path(str(file), run_name="rankwise_trace").get(function)
    if not callable(chosen):
        raise BadInput(f"{file} has no function {function!r}: --function names the one to run")
    with Cluster(ranks, watch=True, timeout=60) as cluster:
        _, said = cluster.trace(chosen)
    for rank in range(ranks):
        sent, received = said.bytes_sent[rank], said.bytes_received[rank]
        print(f"rank {rank}: {len(said.events[rank])} calls, {sent:,} B sent, {received:,} B received")
    print(f"{len(said.messages)} messages in {said.steps} steps")
    out.mkdir(parents=True, exist_ok=True)
    timeline.draw(said.timeline()).savefig(out / "timeline.png")
    said.save(out / "trace.json")
    print(f"drawn in {out / 'timeline.png'}; open {out / 'trace.json'} at ui.perfetto.dev")


COMMANDS = (trace,)

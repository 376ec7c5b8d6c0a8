"""One step of a framework, and its curve: run in the warm ranks of a `Cluster`, or as it was stored.

    python -m reference.frameworks.lab.steps        runs some that have environments of their own, and stores a step

A stored step has what its ranks said, and neither files nor clocks: it is replayed on a modelled network, on which
computing takes no time.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.frameworks.catalogue import find
from reference.frameworks.environments import python_of
from reference.frameworks.plain import Course
from reference.trace import Event, Trace
from reference.trace.tap import world_recorder

from . import runs

PRELOAD = (
    "reference.frameworks.lab.steps",
    "reference.frameworks.adapters.fsdp",
    "reference.frameworks.adapters.tensor",
)
FILE = Path(__file__).parents[1] / "data" / "steps.json"
STORED = (("deepspeed", "zero1"), ("deepspeed", "zero3"), ("deepspeed", "ulysses"), ("megatron", "tp"))


@dataclass(frozen=True)
class StepRun:
    """What a feature has done."""

    curve: tuple[float, ...]  # losses, of the whole batch
    step: Trace  # the last one


def here(cluster: Cluster, framework: str, feature: str, course: Course) -> StepRun:
    """Run a feature in ranks that are there already.

    Raises:
        BadInput: if the framework has an environment of its own, or another number of ranks.
    """
    home, features = find(framework, feature)
    wanted = features[feature]
    if home.packages or wanted.start == "mpiexec":
        raise BadInput(f"{home.title} is started by `rankwise frameworks run {framework}`, not in ranks that are there")
    if wanted.ranks != cluster.world_size:
        raise BadInput(f"{framework} {feature} takes {wanted.ranks} ranks, not {cluster.world_size}")
    found, trace = cluster.trace(_on_rank, wanted.adapter, feature, course)
    known = [losses for losses, _ in found if losses[-1] is not None]
    curve = tuple(sum(step) / len(step) for step in zip(*known, strict=True))
    marks = [own for _, own in found]
    last = tuple(awaited(events[own[-2] : own[-1]]) for events, own in zip(trace.events, marks, strict=True))
    return StepRun(curve, Trace(trace.world_size, last, frozenset(range(trace.world_size))))


def _on_rank(adapter: str, feature: str, course: Course) -> tuple[list[float | None], list[int]]:
    """Losses, and how many calls this rank had made by the end of each step."""
    losses, marks = [], [0]
    for loss in import_module(f"reference.frameworks.adapters.{adapter}").losses(course, feature):
        losses.append(loss)
        marks.append(len(world_recorder().calls))
    return losses, marks


def awaited(events: Sequence[Event]) -> tuple[Event, ...]:
    """The same events, with collectives that no one has waited for waited for where they begin.

    DDP waits for its buckets inside of backward, where no tap hears it.
    """
    return tuple(
        replace(
            each,
            posted=2 * each.posted,
            completed=2 * each.posted + 1 if each.completed is None else 2 * each.completed,
        )
        for each in events
    )


def measured(framework: str, feature: str) -> Trace:
    """A step of a feature in an environment of its own.

    Raises:
        BadInput: if that environment is not there, or the run fails.
    """
    home, features = find(framework, feature)
    wanted = features[feature]
    with tempfile.TemporaryDirectory() as folder:
        failed = runs.started(runs.command_of(python_of(framework, home), framework, feature, wanted, folder))
        said = [Path(folder, f"{rank}.json") for rank in range(wanted.ranks)]
        if not all(path.exists() for path in said):
            raise BadInput(f"{framework} {feature} ends with {failed}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in said]
    return runs.trace_of(found, len(found[0]["marks"]) // 2)


def write(traces: dict[tuple[str, str], Trace], path: Path = FILE) -> None:
    """Store steps, a line for each, without files and clocks."""
    lines = []
    for (framework, feature), trace in traces.items():
        ranks = [[_bare(event).row() for event in events] for events in trace.events]
        lines.append(json.dumps({"framework": framework, "feature": feature, "ranks": ranks}, separators=(",", ":")))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _bare(event: Event) -> Event:
    return replace(event, file="", line=0, begin=0.0, end=0.0)


@cache
def _read(path: Path) -> dict[tuple[str, str], Trace]:
    found = {}
    for each in json.loads(path.read_text(encoding="utf-8")):
        events = tuple(tuple(Event.from_row(rank, row) for row in rows) for rank, rows in enumerate(each["ranks"]))
        found[each["framework"], each["feature"]] = Trace(len(events), events, frozenset(range(len(events))))
    return found


def stored(framework: str, feature: str, path: Path = FILE) -> Trace:
    """A step that was stored.

    Raises:
        BadInput: if it was not.
    """
    found = _read(path)
    if (framework, feature) not in found:
        there = ", ".join(" ".join(key) for key in found)
        raise BadInput(f"no step of {framework} {feature} is stored; there are {there}")
    return found[framework, feature]


def main(say: Callable[[str], None] = print) -> None:
    """Run and store all."""
    traces = {}
    for key in STORED:
        traces[key] = measured(*key)
        say(f"{' '.join(key)}: {max(traces[key].bytes_sent):,} B")
    write(traces)


if __name__ == "__main__":
    main()

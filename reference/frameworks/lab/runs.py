"""A framework's run from outside: its ranks are started, and what they found becomes a `FeatureRow`.

Bytes are those of a trace of all ranks, in which a collective counts as a ring (`reference.trace.native`), so that
frameworks can be compared with each other and with our formulas.

    python -m reference.frameworks.lab.runs        runs again what is stored of adapters that have changed since,
    python -m reference.frameworks.lab.runs count      or counts their lines alone, where they do the same as before
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from reference.composition.step_shape import StepShape
from reference.composition.traffic import traffic_of_model
from reference.frameworks import rows
from reference.frameworks.catalogue import Feature, Framework, find
from reference.frameworks.environments import python_of, variables
from reference.frameworks.on_rank import course_of
from reference.frameworks.plain import Course, one_process
from reference.frameworks.rows import FeatureRow
from reference.memory.precision import PRECISIONS
from reference.oracle import relative_difference
from reference.trace import Event, Trace

ADAPTERS = Path(__file__).parents[1] / "adapters"
GRACE = 20.0  # seconds in which a starter must have ended its ranks
PATIENCE = 600.0  # seconds for a run; the first one of some frameworks compiles


def run(name: str, framework: Framework, feature: str, wanted: Feature) -> FeatureRow:
    """Run one feature. What fails is a row, too, with the error.

    Raises:
        BadInput: if the framework's environment is not there.
    """
    lines = code_lines(ADAPTERS / f"{wanted.adapter}.py")
    row = {"framework": name, "feature": feature, "ranks": wanted.ranks, "lines": lines, "bound": wanted.bound}
    row["date"] = date.today().isoformat()
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(python_of(name, framework), name, feature, wanted, folder)
        failed = started(command)
        said = [Path(folder, f"{rank}.json") for rank in range(wanted.ranks)]
        if not all(path.exists() for path in said):
            return FeatureRow(**row, error=failed)
        found = [json.loads(path.read_text(encoding="utf-8")) for path in said]
        return FeatureRow(**row, **seen(found, wanted, course_of(name, feature, "")))


def started(command: list[str]) -> str:
    """Run a command to its end, or end it and all that it has started. Returns what it would say of a failure."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with variables(command[0]) as told, subprocess.Popen(command, env=told, start_new_session=True, **pipes) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE)
            return f"exit code {process.returncode}: {last_error(said)}"
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its ranks
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE)
            return f"not done after {PATIENCE:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def command_of(python: str, name: str, feature: str, wanted: Feature, folder: str) -> list[str]:
    """What starts the ranks."""
    program = ["-m", "reference.frameworks.on_rank", name, feature, folder]
    if wanted.start == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={wanted.ranks}"]
        return [python, *torchrun, *wanted.options, *program]
    if wanted.start == "mpiexec":
        return [str(Path(python).parent / "mpiexec"), "-n", str(wanted.ranks), *wanted.options, python, *program]
    return [python, "-m", f"reference.frameworks.adapters.{wanted.adapter}", feature, folder]


def last_error(output: str) -> str:
    """The line that names the first error, of all that ranks and their starter say."""
    lines = [line.split("]: ", 1)[-1].strip() for line in output.splitlines() if "(raylet)" not in line]  # Ray's log
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Refused", "BadInput"))]
    named = [line for line in named if "ChildFailedError" not in line]
    return (named or [line for line in lines if line] or ["no word of why"])[-1 if not named else 0]


def seen(said: list[dict[str, Any]], wanted: Feature, course: Course) -> dict[str, Any]:
    """What the ranks found, together."""
    losses = [found["losses"] for found in said if found["losses"][-1] is not None]
    curve = [sum(step) / len(step) for step in zip(*losses, strict=True)]
    found = {"apart": relative_difference(curve, one_process_of(course)), "versions": said[0]["versions"]}
    found |= {"peak": max(each["peak"] for each in said), "seconds": median(said[0]["seconds"][-10:] or [0.0])}
    middle = len(said[0]["marks"]) // 2
    round_of = course.inner_steps if wanted.islands else 1
    steps, before = (trace_of(said, at, round_of) for at in (middle, 0))
    calls = Counter(str(event.op) for event in steps.events[0])
    sent = max(steps.bytes_sent)
    found |= {"sent": sent // round_of, "calls": dict(calls), "at_start": max(before.bytes_sent) - sent}
    return found | {"formula": None if wanted.plan is None else formula(wanted, course) // round_of}


def trace_of(said: list[dict[str, Any]], step: int, steps: int = 1) -> Trace:
    """What the ranks said in so many steps from this one on."""
    events = []
    for rank, found in enumerate(said):
        marks = [0, *found["marks"]]
        first, last = (marks[step], marks[step + steps]) if found["marks"] else (0, 0)
        events.append(tuple(Event.from_row(rank, row) for row in found["events"][first:last]))
    return Trace(len(said), tuple(events), frozenset(range(len(said))))


@cache
def one_process_of(course: Course) -> list[float]:
    """The curve that all are held to."""
    return one_process(course)


def formula(wanted: Feature, course: Course) -> int:
    """Bytes that a rank of our plan sends in a step, at most, without what the update says (a norm, a loss)."""
    parts = wanted.plan.dp_size(wanted.ranks) * wanted.plan.micro_batches
    precision = PRECISIONS["fp64" if course.dtype is torch.float64 else "fp32"]
    shape = StepShape(course.config, wanted.plan, wanted.ranks, course.batch // parts, course.sequence, precision)
    return max(sum(each.bytes for each in traffic_of_model(shape, rank)) for rank in range(wanted.ranks))


def code_lines(path: Path) -> int:
    """Lines of a file that are not empty."""
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def again(row: FeatureRow) -> FeatureRow:
    """The row of another run, with the time that it has: machines are not equally busy.

    Raises:
        BadInput: if the framework's environment is not there.
    """
    framework, features = find(row.framework, row.feature)
    return replace(run(row.framework, framework, row.feature, features[row.feature]), seconds=row.seconds)


def counted(row: FeatureRow) -> FeatureRow:
    """The same row, with the lines that its adapter has now."""
    _, features = find(row.framework, row.feature)
    return replace(row, lines=code_lines(ADAPTERS / f"{features[row.feature].adapter}.py"))


if __name__ == "__main__":
    for stored in rows.load():
        if counted(stored) != stored:
            print(f"{stored.framework} {stored.feature}", flush=True)
            rows.store([counted(stored) if sys.argv[1:] == ["count"] else again(stored)])

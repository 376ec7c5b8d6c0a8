"""What every benchmark reports, and how it measures: rows, and medians of interleaved runs.

    def measure(report: Callable[[Row], None]) -> None:
        report(faster("warm call, 8 ranks", ours=0.0005, peer=0.7, unit="s", bar=5))

    if __name__ == "__main__":
        rows.main("cluster", measure)

Run as a script: a table, or with `--json` one list of objects with the fields of `Row`. Exit code 1 if a bar does not
hold.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

STARTS = 3  # of the ranks, where what is measured depends on them: see `joined`
SCALES = {"s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))}


@dataclass(frozen=True, slots=True)
class Row:
    """One number that was measured, beside what it is compared with."""

    name: str
    ours: float
    peer: float | None  # the same from another implementation, or the limit; None where there is nothing to compare
    unit: str
    ratio: float | None  # above 1 where ours is better
    bar: float | None  # the ratio that was promised; None for a number that is only reported
    holds: bool


def faster(name: str, ours: float, peer: float, unit: str, bar: float | None = None) -> Row:
    """A row where less is better: times, bytes. `ratio` is peer / ours."""
    ratio = peer / ours if ours else float("inf")
    return Row(name, ours, peer, unit, ratio, bar, bar is None or ratio >= bar)


def more(name: str, ours: float, peer: float, unit: str, bar: float | None = None) -> Row:
    """A row where more is better: tokens per second, share of mistakes named. `ratio` is ours / peer."""
    ratio = ours / peer if peer else float("inf")
    return Row(name, ours, peer, unit, ratio, bar, bar is None or ratio >= bar)


def below(name: str, ours: float, limit: float, unit: str) -> Row:
    """A row that must not exceed a limit; `peer` is the limit, the bar 1."""
    return faster(name, ours, limit, unit, bar=1.0)


def beside(name: str, predicted: float, measured: float, unit: str) -> Row:
    """A prediction, as ours, beside what was measured. `ratio` is predicted / measured, and best at 1."""
    return Row(name, predicted, measured, unit, predicted / measured, None, True)


def plain(name: str, ours: float, unit: str) -> Row:
    """A number that is only reported."""
    return Row(name, ours, None, unit, None, None, True)


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    before: Callable[[], object] | None = None,
    calls: int = 1,
) -> dict[str, list[float]]:
    """Seconds of a call of each function, several times, in turns, so that what disturbs one disturbs all.

    Each round has an order of its own, the same on every rank, so that none always comes after the same other one.

    Args:
        functions: by name.
        repeats: timed runs of each, after one that does not count.
        before: called before every run and not timed: a barrier, where ranks measure together.
        calls: of a run, one after the other; a run counts as their mean. Ranks leave a barrier one after another, and
            the first to leave waits in its first call for the last. Where a call is as short as that, one alone would
            measure the barrier; so tools that measure collectives (nccl-tests, for one) time many.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name in random.Random(repeat).sample(list(functions), len(functions)):
            function = functions[name]
            if before is not None:
                before()
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            if repeat:
                times[name].append((time.perf_counter() - begin) / calls)
    return times


def require_same(results: Mapping[str, Sequence[Tensor]], as_in: str) -> None:
    """See that all programs have computed what the one called `as_in` has, but for rounding in float32.

    Raises:
        SystemExit: if they have not.
    """
    for name, found in results.items():
        for mine, right in zip(found, results[as_in], strict=True):
            if not torch.allclose(mine, right, rtol=1e-3, atol=1e-4):
                raise SystemExit(f"{name} differs from {as_in} by {float((mine - right).abs().max()):.2g}")


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each list."""
    return {name: statistics.median(values) for name, values in times.items()}


def of_ranks(results: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """What `interleaved` gave on each rank as one: a run takes as long as on its slowest rank."""
    return {name: [max(run) for run in zip(*(times[name] for times in results), strict=True)] for name in results[0]}


def joined(starts: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """The runs of all starts of the ranks, by name.

    Where in memory their buffers come to lie differs from one start to the next, and stays so. That moves a ratio by up
    to a tenth, and more rounds on the same ranks do not show it.
    """
    return {name: [seconds for times in starts for seconds in times[name]] for name in starts[0]}


def plain_gloo() -> ProcessGroup:
    """All ranks of a cluster on torch's own gloo, without the tap that traces and watches; called by each of them."""
    group = dist.new_group(backend="cpu:gloo")  # under this name the cluster puts no tap in
    group._set_default_backend(ProcessGroup.BackendType.GLOO)  # else torch warns that it looks for hooks in vain
    return group


def main(title: str, measure: Callable[[Callable[[Row], None]], None]) -> None:
    """Measure, and print the rows as a table (or as JSON with `--json`). Exits with 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=f"rankwise bench {title}")
    parser.add_argument("--json", action="store_true", help="print one list of rows instead of a table")
    as_json = parser.parse_args().json
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # who starts a program has, as a rule, started it before
    load = os.getloadavg()[0]
    found: list[Row] = []

    def report(row: Row) -> None:
        found.append(row)
        if not as_json and sys.stderr.isatty():
            print(f"\r\x1b[K{len(found)} measured, last: {row.name}", end="", file=sys.stderr, flush=True)

    with contextlib.redirect_stdout(sys.stderr):  # what ranks print does not belong among the rows
        measure(report)
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
        print(table(title, found))
        print(f"{os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    if not all(row.holds for row in found):
        raise SystemExit(1)


def table(title: str, found: list[Row]) -> str:
    """The rows as plain text, aligned."""
    head = (title, "ours", "peer", "ratio", "bar", "")
    body = [
        (
            row.name,
            quantity(row.ours, row.unit),
            "" if row.peer is None else quantity(row.peer, row.unit),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.bar is None else f"{row.bar:.2f}",
            "" if row.bar is None else ("ok" if row.holds else "below"),
        )
        for row in found
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in (head, *body)
    ]
    held, barred = sum(row.holds for row in found if row.bar is not None), sum(row.bar is not None for row in found)
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, f"{held} of {barred} bars hold"])


def quantity(value: float, unit: str) -> str:
    """A number with its unit, seconds in the scale that reads best."""
    if unit != "s":
        return f"{value:.4g} {unit}".strip()
    for scale, name in SCALES["s"]:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-6:.3g} µs"

"""How fast layouts are predicted and searched, in processor time: one core does it all.

A layout counts as soon as it divides: its memory is predicted, and where it fits, the seconds of its step. Making the
table of layouts is part of it. Medians of several runs. The bar is for spaces of a million layouts and more: there are
some 600 combinations of choices, each with a prediction of its own, which takes half a millisecond however few layouts
it has.
"""

import statistics
import time
from collections.abc import Callable

import rows
from rows import Row

from reference.models.config import preset
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.rules import advise
from reference.planning.search import search

JOBS = {
    "llama3-8b on 64 H100": Job(preset("llama3-8b"), GpuCluster(gpu("h100"), 64), 8192, 512),
    "llama3-70b on 512 H100": Job(preset("llama3-70b"), GpuCluster(gpu("h100"), 512), 8192, 1024),
    "mixtral-8x7b on 64 H100": Job(preset("mixtral-8x7b"), GpuCluster(gpu("h100"), 64), 4096, 256),
    "llama3-405b on 16,384 H100": Job(preset("llama3-405b"), GpuCluster(gpu("h100"), 16_384), 8192, 2048),
}
RUNS = 5
BAR = 1e6  # layouts in a second
LARGE = 1_000_000  # layouts


def measure(report: Callable[[Row], None]) -> None:
    """Layouts a second and seconds of a search for each job; and what rules of thumb take."""
    for name, job in JOBS.items():
        tried, seconds = search(job).tried, median_seconds(lambda job=job: search(job))
        bar = 1.0 if tried >= LARGE else None
        report(rows.more(f"layouts a second, {name}", tried / seconds, BAR, "/s", bar))
        report(rows.plain(f"all {tried:,} layouts, {name}", seconds, "s"))
    name, job = next(reversed(JOBS.items()))
    report(rows.plain(f"rules of thumb, {name}", median_seconds(lambda: advise(job)), "s"))


def median_seconds(run: Callable[[], object]) -> float:
    """Processor time of a run."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    rows.main("planning", measure)

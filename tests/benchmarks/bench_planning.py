"""How fast layouts are predicted and searched, in processor time: one core does it all.

A layout counts as soon as it divides: its memory is predicted, and where it fits, the seconds of its step. Making the
table of layouts is part of it. Medians of several runs. The bar is for spaces of a million layouts and more: there are
some 600 combinations of choices, each with a prediction of its own, which takes half a millisecond however few layouts
it has.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from random import Random

import rows
from rows import Row

from reference.choices import Recompute
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.models.config import GPTConfig, preset
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.planning import local
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
PLANS = 20  # on this machine
SCHEDULES = (
    PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED, PipelineSchedule.ZB_H1,
)  # fmt: skip


def measure(report: Callable[[Row], None]) -> None:
    """Layouts a second and seconds of a search for each job; and what rules of thumb take."""
    for name, job in JOBS.items():
        tried, seconds = search(job).tried, median_seconds(lambda job=job: search(job))
        bar = 1.0 if tried >= LARGE else None
        report(rows.more(f"layouts a second, {name}", tried / seconds, BAR, "/s", bar))
        report(rows.plain(f"all {tried:,} layouts, {name}", seconds, "s"))
    name, job = next(reversed(JOBS.items()))
    report(rows.plain(f"rules of thumb, {name}", median_seconds(lambda: advise(job)), "s"))
    steps_here(report)


def steps_here(report: Callable[[Row], None]) -> None:
    """Steps of random plans on this machine, predicted and measured: half of them lie nearer than the median error."""
    begin = time.perf_counter()
    rates = local.calibrate()
    report(rows.plain("to calibrate", time.perf_counter() - begin, "s"))
    dealt = list(deals(PLANS, Random(0)))
    predicted = [local.predict_here(rates, config, plan, ranks) for ranks, config, plan in dealt]
    measured = [local.measure(config, plan, ranks) for ranks, config, plan in dealt]
    off, correlation = local.errors(predicted, measured)
    report(rows.below(f"median error of {PLANS} random plans, steps here", 100 * off, 10.0, "%"))
    report(rows.more("correlation of their ranks", correlation, 0.95, "", 1.0))


def deals(count: int, random: Random) -> Iterator[tuple[int, TrainConfig, Plan]]:
    """Random plans of random models on 2 to 8 ranks, as far as they fit."""
    while count:
        ranks, width = random.choice([2, 4, 8]), random.choice([128, 256, 384])
        model = GPTConfig(
            random.choice([4, 8]), width, heads=8, kv_heads=random.choice([4, 8]), hidden=random.choice([2, 3]) * width
        )
        config = TrainConfig(model, batch=random.choice([8, 16, 32]), steps=7, sequence=random.choice([64, 128]))
        tp, pp = random.choice([1, 1, 2, 4]), random.choice([1, 1, 2, 4])
        schedule = random.choice(SCHEDULES) if pp > 1 else PipelineSchedule.ONE_F_ONE_B
        plan = Plan(
            random.choice(list(DataParallelism)), random.choice([1, 2, 4, 8]), random.choice(list(Recompute)),
            tensor_parallel=tp, sequence_parallel=tp > 1 and random.random() < 0.5,
            pipeline_parallel=pp, schedule=schedule,
        )  # fmt: skip
        try:
            plan.require_fit(ranks, model, config.sequence)
        except BadInput:
            continue
        if config.batch % (plan.dp_size(ranks) * plan.micro_batches) == 0:
            count -= 1
            yield ranks, config, plan


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

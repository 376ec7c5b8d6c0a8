"""What a step of this project takes on this machine: measured once, then predicted for any plan on its ranks.

Ranks here are processes that share a few cores, so what counts is processor time: a step takes as long as all ranks
compute, over the cores; or as long as one rank computes and waits in its pipeline, if that is more.

    seconds of a rank  =  FLOPs / rate  +  bytes / bandwidth  +  kernels · k  +  messages · c  +  bytes sent · b  +  u

What a rank does is counted (`counted.py`), from the code that trains. The rates are measured: of computing on steps of
models of several shapes by one process for each core, of messages on all-reduces of several sizes and numbers of ranks.
What ranks lose to each other besides, as they wait and fill one cache, is a factor that grows with their number: what
steps of three plans take longer than that, on 2, 4 and 8 ranks.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.models.config import GPTConfig
from reference.plan import DataParallelism, Plan

from .bubbles import bubble
from .counted import CountedPlan, RankCount, counted
from .layouts import Layouts

UPDATE = 4 * 8  # bytes that AdamW in float32 reads and writes for each parameter, its gradient's norm included


@dataclass(frozen=True)
class LocalRates:
    """Of this machine, as `calibrate` has found them: seconds of processor time.

    Attributes:
        cores: that ranks share.
        flop: of a FLOP.
        byte: of a byte that a kernel reads or writes.
        kernel: of a kernel, whatever it does.
        step: of each step of a rank, whatever it does.
        message: of one; an all-reduce of n ranks is a ring of 2 (n - 1).
        sent: of a byte that is sent.
        together: how much longer so many ranks take than all that over the cores, by their number.
    """

    cores: int
    flop: float
    byte: float
    kernel: float
    step: float
    message: float
    sent: float
    together: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})

    def factor(self, ranks: int) -> float:
        """How much longer so many ranks take: between numbers that were measured, along the logarithm."""
        return float(np.interp(np.log2(ranks), np.log2([*self.together]), [*self.together.values()]))

    def __str__(self) -> str:
        return (
            f"{self.cores} cores; each: {1e-9 / self.flop:.1f} GFLOP/s, {1e-9 / self.byte:.1f} GB/s, "
            f"{1e6 * self.kernel:.1f} µs a kernel, {1e3 * self.step:.1f} ms a step, "
            f"{1e6 * self.message:.0f} µs a message, {1e-9 / self.sent:.2f} GB/s sent, "
            f"and {', '.join(f'{factor:.2f} times that on {n} ranks' for n, factor in self.together.items() if n > 1)}"
        )


def features(rank: RankCount) -> np.ndarray:
    """What the seconds of a rank are made of: FLOPs, bytes, kernels, a step, messages, bytes sent."""
    work = rank.count.work
    sent = rank.count.sent.values()
    moved = work.written + work.moved + UPDATE * rank.masters
    messages, size = (sum(float(getattr(said, name)) for said in sent) for name in ("messages", "bytes"))
    return np.array([work.flops + work.attention, moved, work.kernels, 1.0, messages, size], dtype=float)


def rank_seconds(rates: LocalRates, rank: RankCount) -> float:
    """Processor time of one rank in a step."""
    prices = [rates.flop, rates.byte, rates.kernel, rates.step, rates.message, rates.sent]
    return float(features(rank) @ prices)


def counts(config: TrainConfig, plan: Plan, ranks: int) -> CountedPlan:
    """What ranks do in a step of this training."""
    windows = config.batch // plan.dp_size(ranks) // plan.micro_batches
    return counted(config.model, plan, ranks, config.sequence, windows, config.precision)


def predict_here(rates: LocalRates, config: TrainConfig, plan: Plan, ranks: int) -> float:
    """Seconds of a step of a plan on this machine.

    Args:
        rates: of `calibrate`.
        config: what is learned.
        plan: how it is laid out.
        ranks: of all axes together.
    """
    found, p = counts(config, plan, ranks), plan.pipeline_parallel
    each = [rank_seconds(rates, found.rank(pipe)) for pipe in range(p)]
    alone = max(each)
    if p > 1:
        third = alone / plan.micro_batches / 3
        layout = Layouts(pp=p, chunks=found.schedule.stages // p, schedule=plan.schedule)
        alone += float(bubble(layout, plan.micro_batches, third, third, third))
    return max(alone, sum(each) * ranks / p / rates.cores) * rates.factor(ranks)


SHAPES = (  # of one process each: windows, and a model; small ones for what kernels take, large ones for FLOPs
    (1, GPTConfig(layers=8, width=32, heads=4, kv_heads=2, hidden=96)),
    (4, GPTConfig(layers=4, width=128, heads=4, kv_heads=2, hidden=352)),
    (16, GPTConfig(layers=2, width=128, heads=4, kv_heads=4, hidden=352)),
    (8, GPTConfig(layers=2, width=256, heads=8, kv_heads=4, hidden=704)),
    (4, GPTConfig(layers=2, width=512, heads=8, kv_heads=8, hidden=1408)),
)
PLANS = (  # of several ranks, and of every axis
    (2, Plan(DataParallelism.ZERO2, micro_batches=2)),
    (4, Plan(DataParallelism.DDP, tensor_parallel=2)),
    (8, Plan(DataParallelism.ZERO1, micro_batches=4, tensor_parallel=2, pipeline_parallel=2)),
)
SIZES = (1_000, 100_000, 1_000_000)  # elements of an all-reduce
STEPS, CALLS = 5, 10


def calibrate(cores: int | None = None) -> LocalRates:
    """Measure this machine: less than a minute, in which nothing else should run."""
    cores = cores or os.cpu_count() or 1
    with Cluster(cores, preload=("torch._dynamo",)) as cluster:
        took = [median(cluster.run(_steps_alone, TrainConfig(model, batch=b, steps=STEPS + 2))) for b, model in SHAPES]
    rows = np.array([features(counts(TrainConfig(model, batch=b), Plan(), 1).rank())[:4] for b, model in SHAPES])
    flop, byte, kernel, step = _not_below_zero(rows, np.array(took))
    message, sent = _of_messages()
    rates = LocalRates(cores, flop, byte, kernel, step, message, sent)
    return replace(rates, together=_together(rates))


def _together(rates: LocalRates) -> Mapping[int, float]:
    """How much longer ranks take than each of them would alone, and no less."""
    config, found = TrainConfig(SHAPES[3][1], batch=16, steps=STEPS + 2), {1: 1.0}
    for ranks, plan in PLANS:
        found[ranks] = max(1.0, measure(config, plan, ranks) / predict_here(rates, config, plan, ranks))
    return found


def _of_messages() -> tuple[float, float]:
    """Processor time of a message, and of a byte in it."""
    rows, took = [], []
    for n in (2, 4, 8):
        with Cluster(n) as cluster:
            for size in SIZES:
                rows.append([2 * (n - 1), 4 * size * 2 * (n - 1) / n])
                took.append(sum(cluster.run(_all_reduces, size)) / n)
    message, sent = _not_below_zero(np.array(rows), np.array(took))
    return message, sent


def _not_below_zero(rows: np.ndarray, took: np.ndarray) -> np.ndarray:
    """Prices, none below zero, with the least squares of relative errors; a price that would be below is a trifle."""
    scaled, free = rows / took[:, None], list(range(rows.shape[1]))
    while True:
        prices = np.full(rows.shape[1], 1e-15)
        found, *_ = np.linalg.lstsq(scaled[:, free], np.ones(len(took)), rcond=None)
        prices[free] = found
        if (found > 0).all():
            return prices
        free.remove(free[int(np.argmin(found * scaled[:, free].mean(0)))])


def _steps_alone(config: TrainConfig) -> float:
    """Seconds of a step by this process alone, while all others do the same."""
    from reference.train import Training

    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    training = Training(replace(config), alone, torch.device("cpu"))
    return _median_step(training, config.steps)


def step_here(config: TrainConfig, plan: Plan) -> float:
    """Seconds of a step on the ranks of this cluster, measured: the median of all but the first two."""
    from reference.train import Training

    return _median_step(Training(config, dist.group.WORLD, torch.device("cpu"), plan), config.steps)


def _median_step(training, steps: int) -> float:
    seconds = []
    for step in range(steps):
        dist.barrier()
        begin = time.perf_counter()
        training.backward(step)
        training.update(step)
        seconds.append(time.perf_counter() - begin)
    return median(seconds[2:])


def _all_reduces(size: int) -> float:
    """Processor time of one of several, which does not depend on who else is at work."""
    x = torch.ones(size)
    dist.all_reduce(x)
    dist.barrier()
    begin = time.process_time()
    for _ in range(CALLS):
        dist.all_reduce(x)
    return (time.process_time() - begin) / CALLS


def measure(config: TrainConfig, plan: Plan, ranks: int) -> float:
    """Seconds of a step of a plan, on as many processes of this machine."""
    with Cluster(ranks, preload=("torch._dynamo",)) as cluster:
        return max(cluster.run(step_here, config, plan))


def errors(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """The median of relative errors, and the correlation of ranks (Spearman 1904)."""
    off = np.abs(np.array(predicted) / np.array(measured) - 1)
    first, second = (np.argsort(np.argsort(each)) for each in (predicted, measured))
    return float(np.median(off)), float(np.corrcoef(first, second)[0, 1])

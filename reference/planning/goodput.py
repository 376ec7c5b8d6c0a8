"""Goodput: the part of a training's time that brings it forward, when GPUs fail and checkpoints cost time.

Failures come at random, M seconds apart in the mean (`failures.mtbf`). Every τ seconds of training, all ranks stop for
a checkpoint of δ seconds. A failure is known D seconds later; then a restart takes R, and what was computed since the
last checkpoint is computed again. A failure may come at any time: during a checkpoint, and during a restart, which then
begins anew. Of the time of a long training, with x = (τ + δ) / M,

| goes into   | the part                                              | while nothing is large                |
|-------------|-------------------------------------------------------|---------------------------------------|
| detection   | 1 - exp(-D/M)                                         | D / M                                 |
| restarts    | exp(-D/M) (1 - exp(-R/M))                             | R / M                                 |
| rework      | exp(-(D+R)/M) (1 - x / (exp(x) - 1))                  | (τ + δ) / 2M: half an interval each   |
| checkpoints | exp(-(D+R)/M) x / (exp(x) - 1) · δ / (τ + δ)          | δ / τ                                 |
| stragglers  | what is left, times 1 - 1/s                           | s - 1                                 |
| useful      | what is left, over s                                  |                                       |

where a step takes s times as long as its mean rank would (`stragglers.py`). It is Daly's complete solution, M exp(R/M)
(exp(x) - 1) for each interval, taken apart. It has no memory, as the exponential distribution has none.

The best interval does not depend on D, R or s. To first order it is Young's, sqrt(2 δ M); Daly adds the next terms; and
the minimum itself solves (1 - τ/M) exp(τ/M) = exp(-δ/M).

A checkpoint that is written in the background costs as δ only what stops training: the copy to the host.

Young 1974, "A first order approximation to the optimum checkpoint interval" (CACM 17:9). Daly 2006, "A higher order
estimate of the optimum checkpoint interval for restart dumps" (FGCS 22:3).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reference.errors import BadInput

from .failures import HOUR, FailureRecord, mtbf
from .layouts import Column

ROUNDS = 40  # of Newton's method; it has the last digit after a few
BELOW_ONE = 1 - 2**-50


@dataclass(frozen=True)
class Reliability:
    """How often one GPU takes all others down, and what that costs: seconds, each a number or a column.

    Attributes:
        gpu_mtbf: mean time between failures of one GPU.
        checkpoint: for which training stops to write one.
        detection: from a failure until it is known, such as the timeout of a collective.
        restart: from then until the first new step: new nodes, processes, groups, loading.

    Raises:
        BadInput: if a duration is negative, or the first two are not above 0.
    """

    gpu_mtbf: Column
    checkpoint: Column
    detection: Column = 0.0
    restart: Column = 0.0

    def __post_init__(self) -> None:
        _require_above_zero("mean time between failures", self.gpu_mtbf)
        _require_above_zero("checkpoint", self.checkpoint)
        for name in ("detection", "restart"):
            if not np.all(np.greater_equal(getattr(self, name), 0)):
                raise BadInput(f"{name} takes 0 seconds or more, not {np.min(getattr(self, name)):g}")


@dataclass(frozen=True)
class Goodput:
    """Where the time of a training goes; each number is a column.

    Attributes:
        gpus: that train.
        mtbf: seconds between failures of all of them, in the mean.
        interval: τ, seconds of training between two checkpoints.
        parts: "useful", "stragglers", "checkpoints", "rework", "detection", "restarts": parts of the time, which add
            up to 1.
    """

    gpus: Column
    mtbf: Column
    interval: Column
    parts: Mapping[str, Column]

    @property
    def useful(self) -> Column:
        """The goodput itself, or effective training time, from 0 to 1."""
        return self.parts["useful"]

    def gpu_hours(self, seconds: Column) -> Mapping[str, Column]:
        """What each part costs all GPUs in a training that would take so many seconds if nothing were lost."""
        hours = seconds / self.useful / HOUR * self.gpus
        return {part: share * hours for part, share in self.parts.items()}


def goodput(reliability: Reliability, gpus: Column, interval: Column | None = None, stretch: Column = 1.0) -> Goodput:
    """Of one GPU or of many, at one interval between checkpoints or at many.

    Args:
        reliability: of a GPU, and what failures cost.
        gpus: n.
        interval: τ, in seconds; the best one if left out.
        stretch: s, how much longer a step takes than its mean rank would, at least 1: `stragglers.stretch`.

    Raises:
        BadInput: if there is no GPU, an interval is not above 0, or a stretch is below 1.
    """
    gpus = np.asarray(gpus, dtype=np.float64)
    between = mtbf(reliability.gpu_mtbf, gpus)
    interval = best_interval(reliability.checkpoint, between) if interval is None else interval
    _require_above_zero("interval", interval)
    if not np.all(np.greater_equal(stretch, 1)):
        raise BadInput("a step takes at least as long as its mean rank: a stretch is 1 or more")
    cycle = interval + reliability.checkpoint
    known = np.exp(-reliability.detection / between)
    running = known * np.exp(-reliability.restart / between)
    kept = running * _kept(cycle / between)
    trained = kept * interval / cycle
    parts = {
        "useful": trained / stretch,
        "stragglers": trained * (1 - 1 / stretch),
        "checkpoints": kept - trained,
        "rework": running - kept,
        "detection": 1 - known,
        "restarts": known - running,
    }
    return Goodput(gpus, between, interval, dict(zip(parts, np.broadcast_arrays(*parts.values()), strict=True)))


def _kept(cycle: Column) -> Column:
    """x / (exp(x) - 1): the part of running time that no failure undoes, where a cycle takes x mean times between."""
    return cycle * np.exp(-cycle) / -np.expm1(-cycle)


def by_cause(gpu_hours: Mapping[str, Column], record: FailureRecord) -> dict[str, Column]:
    """What failures cost, by what has failed: `gpu_hours` by part, as from `Goodput.gpu_hours`, to GPU-hours by cause.

    Each failure costs the same, whatever its cause.
    """
    lost = gpu_hours["rework"] + gpu_hours["detection"] + gpu_hours["restarts"]
    return {cause: record.share(cause) * lost for cause in record.causes}


def first_order(reliability: Reliability, gpus: Column, interval: Column) -> Column:
    """The part that is lost, on the back of an envelope: δ/τ + (τ/2 + D + R) / M, as long as it is small."""
    _require_above_zero("interval", interval)
    lost = interval / 2 + reliability.detection + reliability.restart
    return reliability.checkpoint / interval + lost / mtbf(reliability.gpu_mtbf, gpus)


def young(checkpoint: Column, between: Column) -> Column:
    """sqrt(2 δ M): seconds of training between two checkpoints that lose least, as long as δ is far below M.

    Args:
        checkpoint: δ, in seconds.
        between: M, mean time between failures of all GPUs, in seconds.

    Young 1974.
    """
    return np.sqrt(2 * _above_zero(checkpoint, between) * between)


def daly(checkpoint: Column, between: Column) -> Column:
    """Young's interval with two terms more; M where a checkpoint takes 2 M or longer. Arguments as in `young`.

    Daly 2006.
    """
    ratio = _above_zero(checkpoint, between) / (2 * between)
    terms = young(checkpoint, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - checkpoint
    return np.where(ratio < 1, terms, between)


def best_interval(checkpoint: Column, between: Column) -> Column:
    """The interval at which least is lost: with t = τ/M, the root of t + log(1 - t) + δ/M. Arguments as in `young`.

    Newton's method comes down to it from above, since the function falls ever faster.
    """
    ratio = _above_zero(checkpoint, between) / between
    t = np.minimum(np.minimum(np.sqrt(2 * ratio), -np.expm1(-1 - ratio)), BELOW_ONE)
    for _ in range(ROUNDS):
        t = np.minimum(t + (t + np.log1p(-t) + ratio) * (1 - t) / t, BELOW_ONE)
    return t * between


def _above_zero(checkpoint: Column, between: Column) -> Column:
    """A checkpoint's seconds, if they and those between failures are above 0."""
    _require_above_zero("checkpoint", checkpoint)
    _require_above_zero("mean time between failures", between)
    return np.asarray(checkpoint, dtype=np.float64)


def _require_above_zero(what: str, seconds: Column) -> None:
    seconds = np.asarray(seconds, dtype=np.float64)
    if not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise BadInput(f"{what}: seconds above 0, and finite, not {seconds.min():g}")

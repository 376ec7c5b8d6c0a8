"""Stragglers: a step ends when its slowest rank does, and the slowest of many is slower than the slowest of few.

If ranks' times are independent draws from one distribution, n of them take in the mean

    E[max]  =  ∫ T(1 - exp(-e/n)) exp(-e) de,    e from 0 to ∞,

where T(q) is the time that a rank exceeds with probability q. (The largest of n is below T(q) with probability
(1 - q)^n, which is uniform; e is minus its logarithm.) Of exponential times it grows like log n, of normal ones like
sqrt(2 log n), and of times that are never above a limit it ends there.

It makes no difference whether the same GPU is slow in each step or another one each time: each step waits for its
slowest. What differs is the remedy. A sample of measured times knows nothing beyond its largest.

David & Nagaraja 2003, "Order Statistics", section 2.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from reference.errors import BadInput

from .layouts import Column

Distribution = Callable[[Column], Column]
"""From a probability, above 0 and below 1, to the time that a rank exceeds with that probability."""

NODES = np.arange(-40.0, 4.0, 0.005)  # log e, beyond which exp(-e) de is nothing
EXPONENTS = np.exp(NODES)
WEIGHTS = EXPONENTS * np.exp(-EXPONENTS) / (EXPONENTS * np.exp(-EXPONENTS)).sum()
SMALLEST = 2.0**-53  # between 1 and the number below it


def slowest(ranks: Column, times: Distribution) -> Column:
    """The time of the slowest of n ranks, in the mean.

    Args:
        ranks: n, a number or a column; 1 gives the mean of a rank.
        times: what a rank takes for a step, a distribution.

    Raises:
        BadInput: if there is no rank.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    if not np.all(ranks >= 1):
        raise BadInput(f"there is no slowest of {ranks.min():g} ranks: give 1 or more")
    exceeded = -np.expm1(-EXPONENTS / ranks[..., None])
    return times(np.minimum(exceeded, 1 - SMALLEST)) @ WEIGHTS


def stretch(ranks: Column, times: Distribution) -> Column:
    """How much longer a step of n ranks takes than one rank would in the mean: 1 with one rank."""
    return slowest(ranks, times) / slowest(1, times)


def normal(mean: float, deviation: float) -> Distribution:
    """Normally distributed times.

    Args:
        mean: seconds, or 1 where only the ratio matters.
        deviation: the standard deviation, in the same unit.
    """
    return lambda exceeded: mean - deviation * torch.special.ndtri(torch.from_numpy(exceeded)).numpy()


def exponential(least: float, mean_delay: float) -> Distribution:
    """A time that all ranks need, and a delay on top of it that is exponentially distributed."""
    return lambda exceeded: least - mean_delay * np.log(exceeded)


def measured(times: Sequence[float]) -> Distribution:
    """Times as they were measured, of ranks or of steps, with straight lines between them.

    Raises:
        BadInput: if there are fewer than two.
    """
    if len(times) < 2:
        raise BadInput(f"{len(times)} times are no distribution: measure two or more")
    known = np.sort(np.asarray(times, dtype=np.float64))
    places = (np.arange(len(known)) + 0.5) / len(known)
    return lambda exceeded: np.interp(1 - exceeded, places, known)

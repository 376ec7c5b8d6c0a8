"""Layers that take their time on a network that does, and how long a step of them takes.

A layer sleeps, in forward and again in backward. As long as sleeps are much longer than the work, neither the speed of
this machine nor that of gloo matters: only what is done while something else is waited for.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.data_parallel.form import DataParallel
from reference.data_parallel.sleeping import sleeping_model

from .training import Make

LAYERS, WEIGHTS = 4, 256
FORWARD, BACKWARD = 0.030, 0.060  # seconds of a layer
COMPUTE = LAYERS * (FORWARD + BACKWARD)
ATTEMPTS = 5


def second_step(make: Make, seconds_per_pass: float) -> float:
    """Seconds of a step after a first one, in which things are made, and orders are learned.

    Args:
        make: the form.
        seconds_per_pass: that a rank takes to send all of a layer but an n-th.
    """
    from tests.slow_network import slow_group  # a class of torch's kind does not travel to a rank

    n = dist.get_world_size()
    model = sleeping_model(LAYERS, WEIGHTS, FORWARD)
    form = make(model, slow_group(seconds_per_pass / (4 * WEIGHTS * (n - 1) / n)))
    one_step(form, model)
    dist.barrier()
    began = time.monotonic()
    one_step(form, model)
    return time.monotonic() - began


def one_step(form: DataParallel, model: nn.Module) -> None:
    """Without an optimizer."""
    with form.micro_batch(last=True):
        model(torch.zeros(())).backward()
    form.collect()
    form.publish()


@dataclass(frozen=True)
class Measured:
    """The quickest of some steps, and what it should take, in seconds."""

    step: float
    expected: float

    @property
    def off(self) -> float:
        """Relative to what was expected; below zero if the step was too quick."""
        return self.step / self.expected - 1


def measure(cluster: Cluster, make: Make, seconds_per_pass: float, expected: float, enough: float = 0.1) -> Measured:
    """How long a step of this form takes on the slowest rank, beside what is expected."""
    return quickest(lambda: max(cluster.run(second_step, make, seconds_per_pass)), expected, enough)


def quickest(step: Callable[[], float], expected: float, enough: float) -> Measured:
    """The quickest of as many steps as it takes to come near what is expected.

    Where other processes want the cores, sleepers wake up late: then a step is too long, never too short.

    Args:
        step: takes one, and says how many seconds it took.
        expected: seconds.
        enough: how near, relative to that.
    """
    least = float("inf")
    for _ in range(ATTEMPTS):
        least = min(least, step())
        if least < (1 + enough) * expected:
            break
    return Measured(least, expected)

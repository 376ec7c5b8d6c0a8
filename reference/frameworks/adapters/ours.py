"""The reference itself, in the same table: `reference.train` with the plan of a feature."""

from collections.abc import Iterator
from math import inf

import torch
import torch.distributed as dist

from reference.choices import PrecisionName
from reference.collectives.communicator import Native
from reference.config import TrainConfig, precision
from reference.frameworks.catalogue import find
from reference.frameworks.plain import Course
from reference.plan import Plan
from reference.train import Training

ENDLESS = 10**9  # steps of a schedule whose first ones all have one rate


def losses(course: Course, feature: str) -> Iterator[float]:
    """Any feature of `rankwise` in the catalogue. The losses of ranks add up to that of the batch."""
    _, features = find("rankwise", feature)
    yield from trained(training_of(course, features[feature].plan), range(course.steps))


def training_of(course: Course, plan: Plan) -> Training:
    """`reference.train` with a plan, as the course wants it."""
    config = TrainConfig(
        course.config,
        steps=ENDLESS,
        batch=course.batch,
        sequence=course.sequence,
        learning_rate=course.rate,
        warmup=0,
        clip=inf,
        seed=course.seed,
        precision=precision(PrecisionName.FP64 if course.dtype is torch.float64 else PrecisionName.FP32),
    )
    return Training(config, dist.group.WORLD, torch.device("cpu"), plan, Native)


def trained(training: Training, steps: range) -> Iterator[float]:
    """The losses of these steps."""
    for step in steps:
        part = training.backward(step).item()
        training.update(step)
        yield part * training.loss_group.size()

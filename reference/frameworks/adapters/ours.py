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
from reference.train import Training

ENDLESS = 10**9  # steps of a schedule whose first ones all have one rate


def losses(course: Course, feature: str) -> Iterator[float]:
    """Any feature of `rankwise` in the catalogue. The losses of ranks add up to that of the batch."""
    _, features = find("rankwise", feature)
    config = TrainConfig(
        course.config,
        steps=ENDLESS,
        batch=course.batch,
        sequence=course.sequence,
        learning_rate=course.rate,
        warmup=0,
        clip=inf,
        seed=course.seed,
        precision=precision(PrecisionName.FP64),
    )
    training = Training(config, dist.group.WORLD, torch.device("cpu"), features[feature].plan, Native)
    for step in range(course.steps):
        part = training.backward(step).item()
        training.update(step)
        yield part * training.loss_group.size()

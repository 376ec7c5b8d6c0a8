"""What late gradients cost: all four methods train the same small GPT on the same batches.

An update sees the same windows with every method. Methods that update after each micro-batch take them as one
micro-batch; those that need several take them in as many as there are stages. What a flush costs is told by
`Curve.update_times`: when each update would be made if stages took as long as `simulate` is told, one unit for the
forward of a batch through one stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.models import GPTConfig
from reference.models.data import Batches, python_text
from reference.pipeline_parallel.schedule import Kind
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.zero_bubble.asynchronous import TrainingSetup, train
from reference.zero_bubble.methods import METHODS, Method

SMALL = GPTConfig(layers=4, width=32, heads=4, kv_heads=2, hidden=96)


@dataclass(frozen=True)
class Curve:
    """A run, update by update."""

    method: Method
    losses: tuple[float, ...]  # of each batch, in nats per token, with the weights that its forward saw
    update_times: tuple[float, ...]  # when all stages have made an update; a batch's forward in a stage takes 1


def curves(
    cluster: Cluster, methods: Sequence[Method] = METHODS, updates: int = 150, rate: float = 2e-3
) -> list[Curve]:
    """Train by each method on the ranks of a cluster.

    Args:
        cluster: of 1, 2 or 4 ranks, each with one stage.
        methods: by which to train.
        updates: of each.
        rate: of learning, after a warm-up of ten updates.
    """
    found, p = [], cluster.world_size
    for method in methods:
        m = method.micro_batches(p)
        losses = cluster.run(_losses, method, small_setup(m, updates, rate))[0]
        found.append(Curve(method, tuple(losses), update_times(method, p, m, updates)))
    return found


def small_setup(m: int, updates: int, rate: float) -> TrainingSetup:
    """AdamW on Python's documentation, 16 windows of 32 bytes in an update of m micro-batches."""
    batches, optimizer = Batches.of(python_text(), sequence=32, batch=16), partial(torch.optim.AdamW, betas=(0.9, 0.95))
    return TrainingSetup(SMALL, batches, updates, m, optimizer, lambda update: rate * min(1.0, (update + 1) / 10))


def update_times(method: Method, p: int, m: int, updates: int) -> tuple[float, ...]:
    """When the first stage, which is last to know, makes each update."""
    schedule = method.order(p, m, updates)
    step = simulate(schedule, Costs(1 / m, 1 / m, 1 / m))
    ends = [end for action, _, end in step.spans[0] if action.kind is Kind.BACKWARD]
    return tuple(ends[m - 1 :: m])


def _losses(method: Method, setup: TrainingSetup) -> list[float]:
    return train(method, setup, dist.group.WORLD, torch.device("cpu")).losses

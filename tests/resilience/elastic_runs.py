"""What tests of elastic training share: a small training in float64, on ranks to which something happens."""

import argparse  # its text is what is learned here
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from reference.cluster import Cluster, Gone
from reference.cluster.nodes import SWITCH
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import preset
from reference.plan import DataParallelism, Plan
from reference.resilience.elastic import Lap, as_many_as_divide, train_elastically
from reference.resilience.lab.faults import Points, die
from reference.resilience.store import reach, serve
from reference.sharding import Slices
from reference.train import Training, train

PORTS = itertools.count(29400)  # of stores on the switch
STEPS = 6
PRELOAD = ("torch._dynamo", "reference.resilience.elastic")
SMALL = replace(preset("tiny"), layers=2, width=16, heads=2, kv_heads=2, hidden=32)
CONFIG = TrainConfig(
    steps=STEPS, batch=12, sequence=16, warmup=2, model=SMALL, precision=PRECISIONS["fp64"], data=argparse.__file__
)
FSDP = Plan(data_parallel=DataParallelism.FSDP)
Happens = Callable[[int, Training | None, int], None]
"""Told the rank, its training and how many steps it has taken."""


def alone(config: TrainConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all steps in one process, and its parameters in the end."""
    losses: list[float] = []
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        training = train(config, dist.group.WORLD, torch.device("cpu"), report=lambda step: losses.append(step.loss))
        return losses, {part.name: part.master.detach().view(part.shape).clone() for part in training.form.parts}
    finally:
        dist.destroy_process_group()


@cache
def expected(config: TrainConfig = CONFIG) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same, once for each training."""
    return alone(config)


def nothing(rank: int, training: Training | None, step: int) -> None:
    """Let a rank be."""


def elastic(
    port: int,
    config: TrainConfig = CONFIG,
    plan: Plan = FSDP,
    happens: Happens = nothing,
    points: dict[int, int] | None = None,
    at_point: Callable[[], None] = die,
    host: str = "127.0.0.1",
    **options: Any,
) -> tuple[list[Lap], list[tuple[str, Slices, torch.Tensor]], int]:
    """Train elastically on a rank of a cluster.

    Args:
        port, host: of the store.
        happens: after each step.
        points: of each rank to which something is to happen, at which point of its way.
        at_point: what happens there.
        options: of `train_elastically`.

    Returns:
        Laps; what this rank has of the parameters in the end, and where in them; points it has passed.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    with Points((points or {}).get(rank, 0), at_point) as passed:
        laps, training = train_elastically(
            config,
            as_many_as_divide(config, plan),
            partial(reach, host, port),
            f"{rank:03}-{os.getpid()}",
            torch.device("cpu"),
            at_first=world_size,
            after_step=lambda training, step: happens(rank, training, step.step),
            **options,
        )
    parts = training.form.parts if training else ()
    held = [(p.name, box, x.clone()) for p in parts for box, x in p.pieces(p.master.detach())]
    return laps, held, passed.count


def run(cluster: Cluster, **options: Any) -> list[Any]:
    """Train on all ranks of a cluster, with a store of its own."""
    store = serve()
    return cluster.survive(elastic, store.port, **options)


def run_on(cluster: Cluster, **options: Any) -> list[Any]:
    """The same on nodes, with a store on the machine that joins them."""
    port = next(PORTS)
    cluster.nodes.start_on_switch([sys.executable, "-m", "reference.resilience.store", SWITCH, str(port)])
    return cluster.survive(elastic, port, host=SWITCH, **options)


def require_right(results: list[Any], config: TrainConfig = CONFIG) -> list[Lap]:
    """See that those who live have learned what one process learns. Returns the laps of the first of them.

    Where all live, nothing of it may be lost: together they hold every element.
    """
    losses, parameters = expected(config)
    lived = [result for result in results if not isinstance(result, Gone)]
    assert lived
    for laps, parts, _ in lived:
        for lap in laps:
            for step, loss in lap.losses.items():
                assert abs(loss - losses[step]) < 1e-10, (step, loss, losses[step])
        for name, box, values in parts:
            torch.testing.assert_close(values, box.within(parameters[name]), rtol=0, atol=1e-10)
    if len(lived) == len(results):
        held = sum(values.numel() for _, parts, _ in lived for *_, values in parts)
        assert held >= sum(each.numel() for each in parameters.values())
    done = {step for laps, _, _ in lived for lap in laps for step in lap.losses}
    assert done == set(range(config.steps))
    return lived[0][0]

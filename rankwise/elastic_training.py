"""`rankwise train --elastic`: training on a cluster of this machine that continues where ranks die."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from rankwise.ranks import OnNodes, require_ranks
from rankwise.training import Request, begun
from reference.cluster import Cluster, Gone, Last
from reference.cluster.nodes import SWITCH
from reference.errors import BadInput
from reference.parallelize import Plan
from reference.report import StepReport, logger
from reference.resilience.elastic import Lap, as_many_as_divide, train_elastically
from reference.resilience.store import reach, serve
from reference.saves import Saves
from reference.train import TrainConfig, Training, validation_loss

PRELOAD = ("reference.resilience.elastic",)
PORT = 29400  # of the store, where ranks are on nodes: on the machine that joins them


def train_elastically_here(request: Request) -> None:
    """Train, whatever ranks die, and say how it went.

    Raises:
        BadInput: as `train_on_cluster`; also where all ranks that held a part of the state have died, and nothing was
            saved.
    """
    config, saves = request.config, request.saves
    require_ranks(request.ranks)
    if request.device == "cuda":
        raise BadInput("--elastic trains on CPUs, over gloo: leave out --device cuda")
    if saves and saves.in_background:
        raise BadInput("--elastic writes checkpoints at once: leave out --save-in-background")
    if saves and saves.full_every > 1:
        raise BadInput("--elastic writes checkpoints in full: leave out --save-full-every")
    if config.is_compressed:
        raise BadInput(
            "--elastic keeps no copies of what was not sent of gradients: leave out --compress, and --optimizer"
        )
    if config.spikes:
        raise BadInput("--elastic goes back where ranks die, and not past spikes: leave out --spike-deviations")
    with begun(request, "cpu", preload=PRELOAD) as training:
        training.say([f"their processes are {training.pids}: kill one, and the others continue"])
        host, port, _store = store_for(training.cluster, training.on_nodes)
        asked = config, request.plan, saves, training.log, host, port
        with training.following():
            results = training.cluster.survive(on_rank, *asked, last=Last(ended))
    training.say(f"rank {rank} {result}" for rank, result in enumerate(results) if isinstance(result, Gone))
    lived = [result for result in results if not isinstance(result, Gone)]
    if not lived:
        raise BadInput("all ranks have died")
    if errors := [result for result in lived if isinstance(result, BadInput)]:
        raise errors[0]
    laps, _ = max(lived, key=lambda one: len(one[0]))
    training.say(told(laps))
    loss = next((loss for _, loss in lived if loss is not None), None)
    if loss is not None:
        training.say_loss(loss)


def ended(result: tuple[list[Lap], float | None] | BadInput) -> bool:
    """Whether a rank has seen the last step: those that still hang have been left behind."""
    return not isinstance(result, BadInput) and result[1] is not None


def store_for(cluster: Cluster, on_nodes: OnNodes) -> tuple[str, int, object]:
    """A store that outlives the ranks: its address, its port, and what must be held as long as it is needed."""
    if not on_nodes.options:
        store = serve()
        return "127.0.0.1", store.port, store
    process = cluster.nodes.start_on_switch([sys.executable, "-m", "reference.resilience.store", SWITCH, str(PORT)])
    return SWITCH, PORT, process


def on_rank(
    config: TrainConfig, plan: Plan, saves: Saves | None, log: Path, host: str, port: int
) -> tuple[list[Lap], float | None] | BadInput:
    """What a rank does. Returns its laps, and the loss on held-out text where it has seen the last step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    write, found = logger(log), []

    def after_step(training: Training, step: StepReport) -> None:
        if training.group.rank() == 0:
            write(step)
        if step.step == (config.stop_after or config.steps):
            found.append(validation_loss(training))

    try:
        laps, _ = train_elastically(
            config,
            as_many_as_divide(config, plan),
            partial(reach, host, port),
            f"rank {rank:03} of {os.getpid()}",
            torch.device("cpu"),
            saves=saves,
            at_first=ranks,
            after_step=after_step,
        )
    except BadInput as error:
        return error
    return laps, found[-1] if found else None


def told(laps: Sequence[Lap]) -> list[str]:
    """What happened between laps, a line each."""
    lines = []
    for before, after in pairwise(laps):
        if after.first is None:
            continue
        again = max(before.losses, default=after.first - 1) + 1 - after.first
        steps = f", {again} step{'s' * (again != 1)} done again" if again > 0 else ""
        lines.append(
            f"{len(before.round.members)} ranks became {len(after.round.members)} after step {after.first}: "
            f"{after.began - before.ended:.2f} s until they had agreed{steps}"
        )
    return lines

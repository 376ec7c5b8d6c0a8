"""`rankwise train --elastic`: training on a cluster of this machine that continues where ranks die."""

import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from rankwise.progress import following
from rankwise.ranks import TRAINING, OnNodes, require_ranks, where_possible
from rankwise.training import NO_NODES, begun_log
from reference.cluster import Cluster, Gone, Last
from reference.cluster.nodes import SWITCH
from reference.errors import BadInput
from reference.limits import host_memory, require_memory
from reference.models.data import unigram_entropy
from reference.parallelize import Plan
from reference.report import StepReport, held_out, logger
from reference.resilience.elastic import Lap, as_many_as_divide, train_elastically
from reference.resilience.store import reach, serve
from reference.saves import Saves
from reference.train import TrainConfig, Training, batches_for, require_fit, validation_loss

PRELOAD = (*TRAINING, "reference.resilience.elastic")
PORT = 29400  # of the store, where ranks are on nodes: on the machine that joins them


def train_elastically_here(
    config: TrainConfig,
    plan: Plan,
    saves: Saves | None,
    ranks: int,
    device: str,
    log: Path | None,
    on_nodes: OnNodes = NO_NODES,
) -> None:
    """Train, whatever ranks die, and say how it went. Arguments and errors are those of `train_on_cluster`.

    Raises:
        BadInput: also where all ranks that held a part of the state have died, and nothing was saved.
    """
    require_ranks(ranks)
    if device == "cuda":
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
    require_fit(config, plan, ranks)
    batches = batches_for(config, plan.dp_size(ranks), plan.micro_batches)
    require_memory(config, plan, host_memory())
    resumes = saves.check(config, batches) if saves else ""
    console = Console(soft_wrap=True, highlight=False)
    on_nodes = where_possible(on_nodes)
    with tempfile.TemporaryDirectory() as folder:
        log = begun_log(log or Path(folder, "steps.jsonl"), keep=bool(resumes))
        with Cluster(ranks, device="cpu", timeout=None, preload=PRELOAD, **on_nodes.options) as cluster:
            pids = cluster.ready()
            console.print(f"{config.model.parameters:,} parameters, {ranks} ranks{on_nodes}, cpu")
            console.print(f"their processes are {', '.join(map(str, pids))}: kill one, and the others continue")
            if resumes:
                console.print(resumes, markup=False)
            host, port, _store = store_for(cluster, on_nodes)
            with following(log, config.steps, console):
                results = cluster.survive(on_rank, config, plan, saves, log, host, port, last=Last(ended))
    lived = [result for result in results if not isinstance(result, Gone)]
    for rank, result in enumerate(results):
        if isinstance(result, Gone):
            console.print(f"rank {rank} {result}")
    if not lived:
        raise BadInput("all ranks have died")
    if errors := [result for result in lived if isinstance(result, BadInput)]:
        raise errors[0]
    laps, _ = max(lived, key=lambda one: len(one[0]))
    for line in told(laps):
        console.print(line, markup=False)
    loss = next((loss for _, loss in lived if loss is not None), None)
    if loss is not None:
        knowing = unigram_entropy(batches.text)
        console.print(f"{held_out(loss)}; knowing how frequent each byte is, and nothing else, gives {knowing:.3f}")


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

"""Training on a cluster of this machine, as a person in front of a terminal sees it."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from rankwise import on_rank
from rankwise.progress import following
from rankwise.ranks import TRAINING, OnNodes, require_ranks, where_possible
from reference.cluster import Cluster
from reference.decentralized.islands import island_size
from reference.decentralized.rounds import whose_loss
from reference.errors import BadInput
from reference.limits import host_memory, require_memory
from reference.models import files
from reference.models.data import unigram_entropy
from reference.models.files import home
from reference.node_order import order_warnings
from reference.parallelize import Plan
from reference.report import held_out
from reference.resilience.preemption import Preempted, on_sigterm
from reference.saves import Saves
from reference.train import TrainConfig, batches_for, require_fit

NO_NODES = OnNodes()


def train_on_cluster(
    config: TrainConfig,
    plan: Plan,
    saves: Saves | None,
    ranks: int,
    device: str,
    log: Path | None,
    on_nodes: OnNodes = NO_NODES,
) -> None:
    """Train, and say how it went.

    Args:
        config: what to learn.
        plan: how the work is laid out.
        saves: where to save, if anywhere.
        ranks: number of processes.
        device: "auto", "cpu" or "cuda".
        log: keeps every step, if given.
        on_nodes: where the ranks are. Where this machine can't have nodes, they are on none.

    Raises:
        BadInput: if this can't work here. What one process can see is seen before any rank is started.
        Preempted: if this process was told to stop (SIGTERM), once the ranks have saved.
    """
    require_ranks(ranks)
    device = device_on_nodes(device) if on_nodes.nodes else choose_device(device, ranks)
    require_fit(config, plan, ranks)
    batches = batches_for(config, plan.dp_size(ranks), plan.micro_batches)
    if device == "cpu":
        require_memory(config, plan, host_memory())
    if log and config.data and log.resolve() == home(config.data).resolve():
        raise BadInput(f"--log would overwrite the text {config.data}")
    console = Console(soft_wrap=True, highlight=False)
    goes_on = saves.check(config, batches) if saves else ""
    on_nodes = where_possible(on_nodes)
    with tempfile.TemporaryDirectory() as folder:
        log = begun_log(log or Path(folder, "steps.jsonl"), keep=bool(goes_on))
        with Cluster(ranks, device=device, timeout=None, preload=TRAINING, **on_nodes.options) as cluster:
            where = place_of(cluster.run(on_rank.own_device), device)
            size = f"{config.model.parameters:,} parameters, {len(batches.text):,} bytes of text{unpacked(config)}"
            console.print(f"{size}, {ranks} ranks{on_nodes}, {where}")
            of_island = on_nodes.names(ranks)[: island_size(config, ranks)]
            for warning in order_warnings(of_island, plan, config.model):
                print(f"rankwise: warning: {warning}", file=sys.stderr, flush=True)
            if goes_on:
                console.print(goes_on, markup=False)
            told = on_sigterm(partial(tell, cluster.pids)) if saves else nullcontext()
            with following(log, config.steps, console), told:
                outcome = cluster.run(on_rank.train_or_refuse, config, log, plan, saves)[0]
            if isinstance(outcome, BadInput | Preempted):
                raise outcome
    for line in outcome.told:
        console.print(line, markup=False)
    console.print(
        f"{held_out(outcome.validation_loss, whose_loss(config))}; "
        f"knowing how frequent each byte is, and nothing else, gives {unigram_entropy(batches.text):.3f}"
    )


def tell(pids: Iterable[int]) -> None:
    """Send SIGTERM to ranks that are there: they agree on a step, save, and return."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def unpacked(config: TrainConfig) -> str:
    """What a text was taken out of, in a few words; "" for a plain file."""
    done = files.read(config.data)[1] if config.data else []
    return f" (read as {', '.join(done)})" if done else ""


def place_of(devices: list[torch.device], chosen: str) -> str:
    """Where the ranks compute, as they say themselves.

    Args:
        devices: what each rank says.
        chosen: "cpu" or "cuda".

    Raises:
        BadInput: if any of them computes elsewhere than was chosen.
    """
    for rank, device in enumerate(devices):
        if device.type != chosen:
            here = device.type
            raise BadInput(f"{chosen} was chosen, and rank {rank} computes on {here}: say --device {here}")
    return chosen


def device_on_nodes(wanted: str) -> str:
    """ "cpu", on which ranks on nodes compute.

    Raises:
        BadInput: if GPUs are demanded.
    """
    if wanted == "cuda":
        raise BadInput("--nodes has ranks that compute on the CPU: leave out --device cuda")
    return "cpu"


def choose_device(wanted: str, ranks: int) -> str:
    """ "cuda" if every rank can have a GPU of its own, else "cpu".

    Raises:
        BadInput: if GPUs are demanded and there are too few.
    """
    gpus = torch.cuda.device_count()
    if wanted == "cuda" and gpus < ranks:
        raise BadInput(f"--device cuda takes a GPU for each of {ranks} ranks, and torch sees {gpus}")
    return "cuda" if wanted != "cpu" and gpus >= ranks else "cpu"


def begun_log(log: Path, keep: bool = False) -> Path:
    """The log, ready to be written to, as a path that means the same to every process.

    Args:
        log: made if need be, with its folder.
        keep: what is in it, for a run that resumes; else it is emptied.

    Raises:
        BadInput: if it can't be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("a" if keep else "w").close()
    except OSError as error:
        raise BadInput(f"cannot write {log}: {error.strerror.lower()}") from error
    return log.resolve()


def require_writable(path: Path) -> None:
    """See that a file can be written, and leave it as it is.

    Raises:
        BadInput: if it can't be written.
    """
    new = not path.exists()
    begun_log(path, keep=True)
    if new:
        path.unlink()

"""Training on a cluster of this machine, as a person in front of a terminal sees it."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
from reference.errors import BadInput, require_other_file
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


@dataclass(frozen=True)
class Request:
    """A training, as a person asks for it.

    Attributes:
        config: what to learn.
        plan: how the work is laid out.
        saves: where to save, if anywhere.
        ranks: number of processes.
        device: "auto", "cpu" or "cuda".
        log: keeps every step, if given.
        on_nodes: where the ranks are. Where this machine can't have nodes, they are on none.
    """

    config: TrainConfig
    plan: Plan
    saves: Saves | None
    ranks: int
    device: str = "auto"
    log: Path | None = None
    on_nodes: OnNodes = NO_NODES


@dataclass(frozen=True)
class Begun:
    """A training whose ranks are up.

    Attributes:
        request: what was asked for.
        cluster: the ranks.
        on_nodes: where they are.
        log: keeps every step.
        console: where the person reads.
        text: bytes that are learned.
    """

    request: Request
    cluster: Cluster
    on_nodes: OnNodes
    log: Path
    console: Console
    text: bytes

    @property
    def pids(self) -> str:
        """Process ids of the ranks, for a person who wants to kill one."""
        return ", ".join(map(str, self.cluster.pids))

    def say(self, lines: Iterable[str]) -> None:
        """Tell the person."""
        for line in lines:
            self.console.print(line, markup=False)

    def say_loss(self, loss: float) -> None:
        """Tell the person the loss on held-out text, in nats per byte, and what it is to be held against."""
        said = held_out(loss, whose_loss(self.request.config))
        knowing = unigram_entropy(self.text)
        self.say([f"{said}; knowing how frequent each byte is, and nothing else, gives {knowing:.3f}"])

    def following(self) -> AbstractContextManager:
        """Tell the person of every step, as the log has it."""
        return following(self.log, self.request.config.steps, self.console)

    def handing_on(self) -> AbstractContextManager:
        """Hand SIGTERM on to the ranks, if there is a place to save to: they agree on a step, save, and return."""
        return on_sigterm(partial(tell, self.cluster.pids)) if self.request.saves else nullcontext()


@contextmanager
def begun(
    request: Request, device: str, *, width: int | None = None, divided: str = "", preload: Sequence[str] = ()
) -> Iterator[Begun]:
    """Start the ranks, and say what begins. What one process can see to be impossible is refused before.

    Args:
        device: "cpu" or "cuda".
        width: on how many ranks the work is laid out as the plan says, in each of several copies; all by default.
        divided: what stands behind "4 ranks", such as " in 2 islands".
        preload: what they import besides what each training does.

    Raises:
        BadInput: if this can't work here.
    """
    config, plan, saves, ranks = request.config, request.plan, request.saves, request.ranks
    width = width or ranks
    require_fit(config, plan, width)
    batches = batches_for(config, plan.dp_size(width), plan.micro_batches)
    if device == "cpu":
        require_memory(config, plan, host_memory())
    require_other_file("--log", request.log, home(config.data) if config.data else None)
    goes_on = saves.check(config, batches) if saves else ""
    on_nodes = where_possible(request.on_nodes)
    with tempfile.TemporaryDirectory() as folder:
        log = begun_log(request.log or Path(folder, "steps.jsonl"), keep=bool(goes_on))
        options = {"device": device, "timeout": None, "preload": (*TRAINING, *preload), **on_nodes.options}
        with Cluster(ranks, **options) as cluster:
            where = place_of(cluster.run(on_rank.own_device), device)
            made = Begun(request, cluster, on_nodes, log, Console(soft_wrap=True, highlight=False), batches.text)
            size = f"{config.model.parameters:,} parameters, {len(batches.text):,} bytes of text{unpacked(config)}"
            made.say([f"{size}, {ranks} ranks{divided}{on_nodes}, {where}"])
            laid_out = on_nodes.names(ranks)[: island_size(config, width)]
            for warning in order_warnings(laid_out, plan, config.model):
                print(f"rankwise: warning: {warning}", file=sys.stderr, flush=True)
            made.say([goes_on] if goes_on else [])
            yield made


def train_on_cluster(request: Request) -> None:
    """Train, and say how it went.

    Raises:
        BadInput: if this can't work here. What one process can see is seen before any rank is started.
        Preempted: if this process was told to stop (SIGTERM), once the ranks have saved.
    """
    require_ranks(request.ranks)
    of_nodes = request.on_nodes.nodes
    device = device_on_nodes(request.device) if of_nodes else choose_device(request.device, request.ranks)
    with begun(request, device) as training, training.following(), training.handing_on():
        asked = request.config, training.log, request.plan, request.saves
        outcome = training.cluster.run(on_rank.train_or_refuse, *asked)[0]
        if isinstance(outcome, BadInput | Preempted):
            raise outcome
    training.say(outcome.told)
    training.say_loss(outcome.validation_loss)


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

"""`rankwise train --elastic` with islands: they come and go, and none waits for one that is cut off."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from rankwise.elastic_training import PRELOAD, store_for
from rankwise.ranks import OnNodes, require_ranks
from rankwise.training import Request, begun
from reference.cluster import Cluster, Gone
from reference.decentralized.absences import IslandsThatComeAndGo, require_can
from reference.decentralized.islands import island_size
from reference.errors import BadInput
from reference.parallelize import Plan
from reference.report import logger, silent
from reference.resilience.quorum import StoreQuorum
from reference.resilience.store import reach
from reference.train import TrainConfig, Training, validation_loss

PATIENCE = 3.0  # seconds without a heartbeat, after which no island waits for another
ANSWER = 300.0  # seconds that a question to the store may take: longer than any cut

Met = list[tuple[int, tuple[int, ...]]]
"""Of each round: the step, and the islands whose changes counted."""


@dataclass(frozen=True)
class CutOff:
    """A node whose cable is pulled, and plugged in again."""

    node: int
    after: float  # seconds after training has begun
    seconds: float  # for so long

    @classmethod
    def of(cls, word: str) -> "CutOff":
        """What "3:20:30" means.

        Raises:
            BadInput: for another word.
        """
        try:
            node, after, seconds = word.split(":")
            found = cls(int(node), float(after), float(seconds))
        except ValueError:
            raise BadInput(f"--cut-off is a node, and seconds until and while it is cut: 3:20:30, not {word}") from None
        if found.node < 0 or not all(0 <= each <= threading.TIMEOUT_MAX for each in (found.after, found.seconds)):
            raise BadInput(f"--cut-off has a node and seconds of 0 or more, which have an end, not {word}")
        return found

    @contextmanager
    def happening(self, cluster: Cluster, console: Console) -> Iterator[None]:
        """While the body runs, the node is cut in its time. Afterwards the node is connected again in any case."""
        ended = threading.Event()

        def cut() -> None:
            if ended.wait(self.after):
                return
            cluster.cut(self.node)
            console.print(f"node {self.node} is cut off")
            ended.wait(self.seconds)
            cluster.mend(self.node)
            console.print(f"node {self.node} is connected again")

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def require_cut_off(word: str | None, elastic: bool, config: TrainConfig, on_nodes: OnNodes) -> CutOff | None:
    """What --cut-off says; None where it was not said.

    Raises:
        BadInput: for a node that is not there, or a training that cannot do without one.
    """
    if word is None:
        return None
    found = CutOff.of(word)
    if not elastic or config.islands == 1:
        raise BadInput(
            "a training that waits for all hangs where a node is cut off: --cut-off takes --elastic and islands"
        )
    if on_nodes.nodes is None or found.node >= on_nodes.nodes:
        raise BadInput(f"--cut-off {word} takes --nodes {found.node + 1} or more")
    return found


def train_islands_here(request: Request, cut_off: CutOff | None = None) -> None:
    """Train, whatever islands are there, and say who met.

    Args:
        cut_off: a node that is not there for a while.

    Raises:
        BadInput: as `train_on_cluster`; also where islands cannot come and go.
    """
    config = request.config
    require_ranks(request.ranks)
    require_can(config)
    if request.device == "cuda":
        raise BadInput("--elastic trains on CPUs, over gloo: leave out --device cuda")
    if request.saves:
        raise BadInput("islands that come and go are never all at one step: leave out --save")
    with begun(request, "cpu", divided=f" in {config.islands} islands", preload=PRELOAD) as training:
        host, port, _store = store_for(training.cluster, training.on_nodes)
        if cut_off and not training.on_nodes.options:
            cut_off = None  # this machine has no nodes, as was said
        happening = cut_off.happening(training.cluster, training.console) if cut_off else nullcontext()
        with training.following(), happening:
            results = training.cluster.survive(on_rank, config, request.plan, training.log, host, port)
    lived = [result for result in results if not isinstance(result, Gone)]
    if not lived:
        raise BadInput("all ranks have died")
    met, loss = max(lived, key=lambda result: result[0][-1:])
    training.say(told(met))
    training.say_loss(loss)


def on_rank(config: TrainConfig, plan: Plan, log: Path, host: str, port: int) -> tuple[Met, float]:
    """What a rank does. Returns whom its island met, and its loss on held-out text."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("islands", reach(host, port, ANSWER))
    quorum = StoreQuorum(store, rank, ranks, PATIENCE, island_size(config, ranks))
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    islands = IslandsThatComeAndGo(training, quorum, store, logger(log) if rank == 0 else silent)
    met = islands.run()
    quorum.close()
    return met, validation_loss(training)


def told(met: Sequence[tuple[int, tuple[int, ...]]]) -> list[str]:
    """The islands that have met: a line for rounds of the same ones."""
    lines = []
    for islands, same in groupby(met, key=lambda one: one[1]):
        steps = [step for step, _ in same]
        rounds = f"{len(steps)} round{'s' * (len(steps) != 1)} to step {steps[-1]}"
        lines.append(f"islands {', '.join(map(str, islands))}: {rounds}")
    return lines

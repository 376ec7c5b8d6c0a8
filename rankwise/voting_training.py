"""`rankwise train --voting-replicas`: training on a cluster of this machine where replicas vote on each step."""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from rankwise.elastic_training import store_for
from rankwise.ranks import require_ranks
from rankwise.training import Begun, Request, begun
from reference.cluster import Gone, Last
from reference.errors import BadInput
from reference.parallelize import Plan
from reference.report import StepReport, logger
from reference.resilience.elastic import broken
from reference.resilience.membership import LEASE
from reference.resilience.per_step import Committed, NoReplica, PerStep, require_replicas
from reference.resilience.preemption import Preempted, StopNotice, on_sigterm
from reference.resilience.quorum import StoreQuorum
from reference.resilience.store import reach
from reference.saves import Boundary, Saves
from reference.train import TrainConfig, Training, require_fit, validation_loss
from reference.zero.agreement import by_first
from reference.zero.checkpoint_folder import contents, latest

PRELOAD = ("reference.resilience.per_step",)
REACHED = 30.0  # seconds that a question to the store may take


@dataclass(frozen=True)
class Lived:
    """What a rank says that has come to the end."""

    committed: list[Committed]
    loss: float  # nats per byte of the held-out text


def train_with_votes(request: Request, replicas: int) -> None:
    """Train, whatever replicas fail, and say how it went.

    Args:
        replicas: into which the ranks divide, neighbours together; each is laid out as the plan says.

    Raises:
        BadInput: as `train_on_cluster`; also where no replica has come to the end.
        Preempted: if this process was told to stop (SIGTERM), once the ranks have saved.
    """
    require_ranks(request.ranks)
    width = width_of(request, replicas)
    divided = f" in {replicas} replicas that vote"
    with begun(request, "cpu", width=width, divided=divided, preload=PRELOAD) as training:
        training.say([f"their processes are {training.pids}: kill one, and other replicas continue"])
        host, port, _store = store_for(training.cluster, training.on_nodes)
        asked = request.config, request.plan, request.saves, training.log, host, port, width
        with training.following(), training.handing_on():
            results = training.cluster.survive(on_rank, *asked, last=Last(ended))
    training.say(fates(results))
    say_how_it_went(results, training)


def ended(result: object) -> bool:
    """Whether a rank says that the training is over: those that still hang have been left behind."""
    return isinstance(result, Lived | Preempted)


def width_of(request: Request, replicas: int) -> int:
    """The number of ranks of a replica.

    Raises:
        BadInput: if replicas cannot vote here.
    """
    config, plan, saves, ranks = request.config, request.plan, request.saves, request.ranks
    if replicas < 1 or ranks % replicas:
        raise BadInput(f"{ranks} ranks do not divide into {replicas} replicas that vote: take a divisor")
    if request.device == "cuda":
        raise BadInput("--voting-replicas trains on CPUs, over gloo: leave out --device cuda")
    if saves and saves.in_background:
        raise BadInput("the replica that writes a checkpoint may fail: --voting-replicas takes --no-save-in-background")
    require_fit(config, plan, ranks // replicas)
    require_replicas(config, plan, ranks // replicas, replicas)
    return ranks // replicas


def fates(results: Sequence[object]) -> Iterator[str]:
    """What became of ranks that other ranks have left behind, a line for each."""
    continued = any(isinstance(result, Lived) for result in results)
    for rank, result in enumerate(results):
        if isinstance(result, Gone):
            yield f"rank {rank} {result}"
        elif isinstance(result, RuntimeError) or (continued and isinstance(result, BadInput)):
            yield f"rank {rank} was left behind: {result}"


def say_how_it_went(results: Sequence[object], training: Begun) -> None:
    """To the person, of what ranks have handed back.

    Raises:
        BadInput: where no replica has come to the end, or the end of the training is not saved.
        Preempted: where all were told to stop, and have saved.
    """
    lived = [result for result in results if isinstance(result, Lived)]
    for kind in (Preempted, BadInput, RuntimeError):
        for error in (each for each in results if isinstance(each, kind)):
            if kind is Preempted or not lived:
                raise error if kind is not RuntimeError else BadInput(str(error))
    if not lived:
        raise BadInput("all ranks have died")
    committed = max((each.committed for each in lived), key=len)
    training.say(told(committed))
    training.say_loss(lived[0].loss)
    if training.request.saves and committed:
        require_saved(training.request.saves.folder, committed[-1].step + 1, results)


def require_saved(folder: Path, step: int, results: Sequence[object]) -> None:
    """See that the newest checkpoint is of the last step: the replica that was to write it may have failed.

    Raises:
        BadInput: if it is not, with what a rank has said of it.
    """
    newest = latest(folder)
    if newest is None or contents(newest)["step"] != step:
        refused = (result for result in results if isinstance(result, BadInput))
        raise next(refused, BadInput(f"step {step}, the last one, is not saved: the replica that writes has failed"))


def told(committed: Sequence[Committed]) -> Iterator[str]:
    """Which replicas brought gradients, a line for each change."""
    brought = committed[0].brought if committed else ()
    for each in committed:
        if each.brought != brought:
            brought = each.brought
            yield f"from step {each.step + 1} on gradients are those of replica {' and '.join(map(str, brought))}"


def on_rank(
    config: TrainConfig, plan: Plan, saves: Saves | None, log: Path, host: str, port: int, width: int
) -> Lived | Exception:
    """What a rank does. What cannot work, or has left it behind, comes back as a value."""
    rank, notice = dist.get_rank(), StopNotice()
    first = rank - rank % width
    group = dist.new_group(list(range(first, first + width)), use_local_synchronization=True)
    quorum = StoreQuorum(reach(host, port, REACHED), rank, dist.get_world_size(), LEASE, width)
    try:
        with on_sigterm(notice.give) if saves else nullcontext():
            training = Training(config, group, torch.device("cpu"), plan)
            begun = begin(saves, training)
            one = PerStep(training, quorum, reach(host, port, REACHED), first=begun, notice=notice)
            last = config.stop_after or config.steps
            one.run(last, AfterStep(one, saves, log, begun, last))
        return Lived(one.committed, validation_loss(training))
    except (BadInput, Preempted) as error:
        return error
    except (RuntimeError, TimeoutError) as error:  # other ranks of this replica are gone, or no replica can continue
        if not (isinstance(error, NoReplica | TimeoutError) or broken(error)):
            raise
        return RuntimeError(str(error))
    finally:
        quorum.close()


def begin(saves: Saves | None, training: Training) -> int:
    """How many steps have been taken. All ranks call this together; each replica loads what there is."""
    if not saves:
        return 0
    by_first(lambda: saves.check(training.config, training.batches), dist.group.WORLD)
    return saves.load(training) if saves.resume else 0


class AfterStep:
    """What a replica does after a step that counts: the first of those that brought a gradient reports it, and saves.

    If that one fails before it has saved, the next checkpoint is the next one's.
    """

    def __init__(self, one: PerStep, saves: Saves | None, log: Path, begun: int, last: int) -> None:
        self.one, self.saves, self.write, self.begun, self.last = one, saves, logger(log), begun, last
        self.began = time.perf_counter()
        self.boundary = Boundary(saves, one.training, last, one.notice) if saves else None

    def __call__(self, committed: Committed) -> None:
        step, training = committed.step + 1, self.one.training
        if self.one.replica != committed.brought[0]:
            return
        if training.group.rank() == 0:
            tokens, seconds = step * training.batches.whole.tokens, time.perf_counter() - self.began
            self.write(StepReport(step, committed.loss, committed.norm, tokens, seconds, self.begun))
        if self.saves and (committed.stop or self.saves.due(step, self.last)):
            self.boundary.save(step)
        if committed.stop and self.saves and step < self.last:
            raise Preempted(self.saves.stopped(step))

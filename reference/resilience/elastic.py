"""Training that continues with the ranks that are left.

    1. Agree who takes part (`membership`), make a world of them, lay the model out on it.
    2. Fetch the newest state that is whole among them (`copies`).
    3. Train; after each step keep what one has, in memory, and on a neighbour.
    4. When one dies, hangs, is cut off or comes: back to 1.

The processes stay, with all that they have imported and held. A batch is a function of the step, so a step that is done
again reads what it read, and the losses equal those of a run that was laid out so from the start.

Ranks that wait for a dead one are woken once their round is over (`round_group`).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile

import torch
import torch.distributed as dist

from reference.config import TrainConfig
from reference.errors import BadInput
from reference.groups import mine_of
from reference.parallelize import Plan
from reference.report import StepReport
from reference.saves import Saves
from reference.train import Training, summed
from reference.zero.checkpoint import latest

from .copies import MemoryCopies, StateLost, gathered
from .membership import LEASE, Membership, Round, machine
from .placement import grouped, of_ranks
from .round_group import PATIENCE, RoundOver, world
from .store import OUT_OF_REACH, Connect

BEGUN, DONE = "begun", "done"  # words that are left in the store
CONNECTED = 5.0  # seconds in which the ranks of a new group must have connected; twice as many after each failure

AfterStep = Callable[[Training, StepReport], None]
Layout = Callable[[int], tuple[int, Plan]]
"""Of a number of ranks: how many of them train, and how the work is laid out over these. The others are spares."""


@dataclass
class Lap:
    """A stretch of training in one round.

    Attributes:
        round: its number, and who took part.
        ranks: how many of them trained.
        first: the step that it began with; None where it ended before.
        losses: nats per token, by step.
        began, ended: `time.monotonic()`, when they had agreed, and after the last step.
        resumed: when all held the state to train on from; 0 where it ended before.
        why: what ended it.
    """

    round: Round
    ranks: int
    first: int | None = None
    losses: dict[int, float] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0
    resumed: float = 0.0
    why: str = ""


def train_elastically(
    config: TrainConfig,
    layout: Layout,
    connect: Connect,
    name: str,
    device: torch.device,
    *,
    copies: int = 2,
    copy_every: int = 1,
    saves: Saves | None = None,
    lease: float = LEASE,
    at_first: int = 1,
    after_step: AfterStep = lambda training, step: None,
) -> tuple[list[Lap], Training | None]:
    """Train with all who call this, through one store; they may come and go.

    Args:
        config: what to learn.
        layout: how the work is laid out on so many ranks.
        connect: makes a client of the store, see `store`.
        name: of this process. Ranks are in the order of names, so those of a node should have names that follow each
            other.
        device: where this process computes.
        copies: of each rank's state, its own counted, each on another node where there are several.
        copy_every: steps; those since the last copy are done again when a rank dies.
        saves: checkpoints on a disk, which serve where all who held a part in memory are gone; and to begin with, where
            they are to be resumed. They are written at once.
        lease: seconds without a word from a member, after which it has gone.
        at_first: how many must have come before training begins.
        after_step: called on each rank that trains, after each step.

    Returns:
        The laps that this process took part in, and the training as it is in the end; None where this process has none:
        on a spare, and on one that was gone when the others took the last step.

    Raises:
        BadInput: if a layout does not fit.
        StateLost: all who held a part of the state are gone, and nothing was saved.
    """
    if copy_every < 1:
        raise BadInput(f"a copy is taken every 1 step or more, not {copy_every}")
    keeps = _Keeps(MemoryCopies(), copies, copy_every, saves)
    membership = Membership(connect, name, lease, at_first)
    laps: list[Lap] = []
    learned: Training | None = None  # by the last lap that took all steps
    try:
        while True:
            laps.append(Lap(membership.agree(), 0, began=time.monotonic()))
            runner = _Runner(config, layout, keeps, device, membership, laps[-1], after_step)
            try:
                if membership.told(DONE):
                    return laps, learned
                in_vain = sum(1 for _ in takewhile(lambda lap: lap.first is None, reversed(laps[:-1])))
                with world(laps[-1].round, membership, min(CONNECTED * 2**in_vain, PATIENCE)) as members:
                    runner.run(members)
                    if runner.learned:
                        membership.tell(DONE)
                        return laps, runner.learned
            except RuntimeError as error:
                if not (membership.over or broken(error)):
                    raise
                laps[-1].why = str(error)
            finally:
                laps[-1].ended = time.monotonic()
                learned = runner.learned or learned  # also where others left the last barrier, and this one fails in it
    finally:
        membership.close()


@dataclass(frozen=True)
class _Keeps:
    """Where state is kept."""

    held: MemoryCopies
    copies: int
    every: int  # steps between two copies
    saves: Saves | None


class _Runner:
    """One lap."""

    def __init__(
        self,
        config: TrainConfig,
        layout: Layout,
        keeps: _Keeps,
        device: torch.device,
        membership: Membership,
        lap: Lap,
        after_step: AfterStep,
    ) -> None:
        self.config, self.layout, self.keeps, self.held, self.device = config, layout, keeps, keeps.held, device
        self.membership, self.lap, self.after_step = membership, lap, after_step
        self.last = config.stop_after or config.steps
        self.learned: Training | None = None  # the training, once it has taken all steps

    def run(self, members: dist.ProcessGroup) -> None:
        """Until all steps are taken, or a guest waits to be let in."""
        self.lap.ranks, plan = self.layout(members.size())
        group = mine_of(members, [tuple(range(self.lap.ranks))])
        training = Training(self.config, group, self.device, plan) if group else None
        self.lap.first = self.restore(training, members)
        if training:
            nodes = gathered(machine(), group)
            self.held.begin(group, of_ranks(grouped, nodes, self.keeps.copies), self.lap.round.number)
            self.held.take(training, self.lap.first)
            self.held.settle()
            self.lap.resumed = time.monotonic()
            self.train(training, group)
        dist.barrier()  # spares wait here; after it no rank is needed by another

    def restore(self, training: Training | None, members: dist.ProcessGroup) -> int:
        """From which step on to train: 0 where none was taken. Raises StateLost."""
        begun, saves = self.membership.told(BEGUN), self.keeps.saves
        on_disk = saves and (begun or saves.resume) and latest(saves.folder)
        try:
            if (step := self.held.restore(training, members)) is not None:
                return step
            if begun and not on_disk:
                raise StateLost("all ranks that held the state are gone: none is left that could continue")
        except StateLost:
            if begun and not on_disk:
                raise
        return replace(saves, resume=True).begin(training) if on_disk and training else 0

    def train(self, training: Training, group: dist.ProcessGroup) -> None:
        """Steps, from where they stand."""
        saves, tokens, began = self.keeps.saves, training.batches.tokens, time.perf_counter()
        for step in range(self.lap.first, self.last):
            loss = training.backward(step)
            norm = training.update(step)
            if (step + 1) % self.keeps.every == 0 or step + 1 == self.last:
                self.held.take(training, step + 1)
            self.lap.losses[step] = summed(loss, training.loss_group)
            if step == self.lap.first:  # all have asked whether one had begun
                self.membership.tell(BEGUN)
            if saves and saves.due(step + 1, self.last):
                saves.save(training, step + 1)
            seconds = time.perf_counter() - began
            loss = self.lap.losses[step]
            report = StepReport(step + 1, loss, norm, (step + 1) * tokens, seconds, self.lap.first)
            self.after_step(training, report)
            if step + 1 < self.last and any_rank(self.membership.guests, group):
                self.held.take(training, step + 1)
                self.held.settle()
                self.lap.why = "a guest waits to be let in"
                return
        self.held.settle()
        self.learned = training


def any_rank(says: bool, group: dist.ProcessGroup) -> bool:
    """Whether any rank says yes: then all of them hear it."""
    flag = torch.tensor(int(says))
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag)


def broken(error: RuntimeError) -> bool:
    """Whether an error says that a connection is lost, or silent."""
    return isinstance(error, (RoundOver, dist.DistBackendError, *OUT_OF_REACH)) or "gloo" in str(error)


def as_many_as_divide(config: TrainConfig, plan: Plan) -> Layout:
    """Data parallelism over as many of the ranks as share the batch equally; the plan's other axes stay as they are.

    Raises:
        BadInput: by the layout, if there are fewer ranks than one replica has.
    """

    def layout(ranks: int) -> tuple[int, Plan]:
        for used in range(ranks, 0, -1):
            with suppress(BadInput):
                plan.require_fit(used, config.model, config.sequence)
                if config.batch % (plan.dp_size(used) * plan.micro_batches) == 0:
                    return used, plan
        raise BadInput(f"{ranks} ranks are too few for this plan, or share no batch of {config.batch} windows")

    return layout

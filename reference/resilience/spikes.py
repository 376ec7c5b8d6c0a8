"""A spike of the loss: go back to before it, and leave out the batches that it came with.

This is `plain_votes.is_spike` with: a training that goes back, and batches that are left out.

PaLM met about 20 spikes. "We re-started training from a checkpoint roughly 100 steps before the spike started, and
skipped roughly 200-500 data batches, which cover the batches that were seen before and during the spike" (Chowdhery et
al. 2022, sec. 5.1). The same batches after another checkpoint made no spike: it takes the state and the data.

    batches   0 1 2 3 4 5 6 7 8 9 10 ...
    steps     0 1 2 3 4 5                       a spike at batch 5; the last snapshot is of step 3
                    3 . .   4 5 ...             back at step 3: `before` and `beyond` say which batches are left out

Steps and batches have numbers of their own from then on. The learning rate follows the step, data follow the batch. So
the run is, bit by bit, the one that never saw those batches.

All ranks decide alike and say nothing for it: the decision is a function of the summed loss, which they all have.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from reference.errors import BadInput, require_sizes
from reference.report import Report, StepReport, silent
from reference.train import Training

from .plain_votes import is_spike
from .snapshot import TrainingSnapshot
from .together import SkipTogether, Taken, take_step


class TooManySpikes(RuntimeError):
    """Going back does not help: the state or the settings are at fault, not the data. All ranks raise it together."""


@dataclass(frozen=True)
class SpikePolicy:
    """What is a spike, and what to do about it.

    Attributes:
        window: of so many last losses the median is taken; before there are so many, nothing is a spike.
        deviations: a loss is a spike where it is above the median by so many deviations, robustly estimated.
        least: and by so much at least, in nats: late in training deviations are small.
        before: go back to a snapshot at least so many steps before the spike.
        beyond: leave out so many batches after that of the spike, besides those since the snapshot.
        every: steps between snapshots.
        most: so many times in one run.

    Raises:
        BadInput: for numbers that make no sense.
    """

    window: int = 50
    deviations: float = 8.0
    least: float = 0.1
    before: int = 100
    beyond: int = 200
    every: int = 50
    most: int = 10

    def __post_init__(self) -> None:
        require_sizes(window=self.window, every=self.every)
        if min(self.before, self.beyond, self.most) < 0 or not (self.deviations > 0 and self.least >= 0):
            raise BadInput(
                f"before {self.before}, beyond {self.beyond}, most {self.most}: these are 0 or more, and deviations "
                f"({self.deviations}) are above 0"
            )


@dataclass(frozen=True)
class Spike:
    """What happened once."""

    step: int  # at which the loss was a spike
    loss: float
    back_to: int  # the step that was taken next
    skipped: tuple[int, ...]  # batches that were left out


@dataclass
class SpikeGuard:
    """A training that goes back where its loss spikes.

        guard = SpikeGuard(training, SpikePolicy(before=20, beyond=10))
        guard.run(config.steps)

    Args:
        training: all ranks make one. Its `updates` become those that leave out what is not finite.
        policy: the same on every rank.

    Attributes:
        spikes: what has happened.
        skipped: batches that are left out.
    """

    training: Training
    policy: SpikePolicy = field(default_factory=SpikePolicy)
    spikes: list[Spike] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.training.updates = SkipTogether(self.training)
        self._snapshots: deque[tuple[int, TrainingSnapshot]] = deque()  # the step that comes next, and what there was
        self._losses: list[float] = []  # of all steps

    def run(self, steps: int, report: Report = silent) -> list[float]:
        """Take so many steps. Returns the loss of each: of those taken again, the last one.

        Raises:
            TooManySpikes: where the policy's `most` is exceeded.
        """
        began = time.perf_counter()
        while (step := len(self._losses)) < steps:
            self._remember(step)
            batch = self.batch_of(step)
            taken = self._take(step, batch)
            if taken is None:
                continue
            self._losses.append(taken.loss)
            tokens = len(self._losses) * self.training.batches.tokens
            report(StepReport(step + 1, taken.loss, taken.norm, tokens, time.perf_counter() - began))
        return list(self._losses)

    def batch_of(self, step: int) -> int:
        """The number of the batch that a step reads."""
        return next(batch for place, batch in enumerate(self._batches()) if place == step)

    def _batches(self) -> Iterator[int]:
        """Those that are not left out, in order."""
        batch = 0
        while True:
            if batch not in self.skipped:
                yield batch
            batch += 1

    def _take(self, step: int, batch: int) -> Taken | None:
        """Take a step, or go back: None."""
        taken = take_step(self.training, step, batch)
        last = self._losses[-self.policy.window :]
        if math.isfinite(taken.loss) and len(last) < self.policy.window:
            return taken
        if math.isfinite(taken.loss) and not self._stands_out(taken.loss, last):
            return taken
        self._go_back(step, batch, taken.loss)
        return None

    def _stands_out(self, loss: float, last: list[float]) -> bool:
        return is_spike(loss, last, self.policy.deviations) and is_spike(loss - self.policy.least, last, 0.0)

    def _remember(self, step: int) -> None:
        """Take a snapshot where one is due, and forget those that are older than will be needed."""
        due = step % self.policy.every == 0
        if due and not (self._snapshots and self._snapshots[-1][0] == step):
            self._snapshots.append((step, TrainingSnapshot.of(self.training)))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= step - self.policy.before:
            self._snapshots.popleft()

    def _go_back(self, step: int, batch: int, loss: float) -> None:
        if len(self.spikes) == self.policy.most:
            raise TooManySpikes(f"the loss is {loss:.3g} at step {step}, and {self.policy.most} spikes are enough")
        while len(self._snapshots) > 1 and self._snapshots[-1][0] > step - self.policy.before:
            self._snapshots.pop()
        back, snapshot = self._snapshots[-1]
        left_out = tuple(range(self.batch_of(back), batch + self.policy.beyond + 1))
        self.spikes.append(Spike(step, loss, back, tuple(each for each in left_out if each not in self.skipped)))
        self.skipped.update(left_out)
        snapshot.restore(self.training)
        del self._losses[back:]

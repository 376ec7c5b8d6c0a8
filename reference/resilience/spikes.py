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
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from reference.errors import BadInput
from reference.spikes import SpikePolicy

from .plain_votes import is_spike
from .snapshot import TrainingSnapshot
from .together import SkipTogether, take_step

if TYPE_CHECKING:
    from reference.train import Training


class TooManySpikes(BadInput):
    """Going back does not help: the state or the settings are at fault, not the data. All ranks raise it together."""


@dataclass(frozen=True)
class Spike:
    """What happened once."""

    step: int  # at which the loss was a spike
    loss: float
    back_to: int  # the step that was taken next
    skipped: tuple[int, ...]  # batches that were left out

    def __str__(self) -> str:
        first, last = min(self.skipped), max(self.skipped)
        return (
            f"a loss of {self.loss:.3f} in step {self.step + 1} was a spike: back to what there was after step "
            f"{self.back_to}, without batches {first} to {last}"
        )


@dataclass
class SpikeGuard:
    """A training that goes back where its loss spikes.

        guard = SpikeGuard(training, SpikePolicy(before=20, beyond=10))
        guard.run(config.steps)

    A `Training` whose config has `spikes` makes one, and `reference.train` takes its steps. Losses and batches that are
    left out are in each checkpoint. Snapshots are not: a run that resumes has one of where it resumes, and goes back no
    further.

    Args:
        training: all ranks make one. Its `updates` become those that leave out what is not finite.
        policy: the same on every rank.

    Attributes:
        spikes: what has happened.
        skipped: batches that are left out.
    """

    training: "Training"
    policy: SpikePolicy = field(default_factory=SpikePolicy)
    spikes: list[Spike] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.training.updates = SkipTogether(self.training)
        self.training.stateful["spikes"] = self
        self._snapshots: deque[tuple[int, TrainingSnapshot]] = deque()  # the step that comes next, and what there was
        self._last: deque[float] = deque(maxlen=self.policy.window)  # losses

    def run(self, steps: int) -> list[float]:
        """Take so many steps. Returns the loss of each: of those taken again, the last one.

        Raises:
            TooManySpikes: where the policy's `most` is exceeded.
        """
        losses: list[float] = []
        for step, loss, _ in self.steps(0, steps):
            losses[step:] = [loss]
        return losses

    def steps(self, first: int, last: int) -> Iterator[tuple[int, float, float]]:
        """As `Training.steps`; after a spike numbers of steps go back.

        Raises:
            TooManySpikes: where the policy's `most` is exceeded.
        """
        step = first
        while step < last:
            self._remember(step)
            batch = self.batch_of(step)
            taken = take_step(self.training, step, batch)
            if self._is_spike(taken.loss):
                step = self._go_back(step, batch, taken.loss)
                continue
            self._last.append(taken.loss)
            yield step, taken.loss, taken.norm
            step += 1

    def batch_of(self, step: int) -> int:
        """The number of the batch that a step reads: of those that are not left out."""
        batch = step
        for left_out in sorted(self.skipped):
            batch += left_out <= batch
        return batch

    def state_dict(self) -> dict[str, Any]:
        spikes = [{**asdict(each), "skipped": list(each.skipped)} for each in self.spikes]
        return {"last": list(self._last), "spikes": spikes, "skipped": sorted(self.skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = deque(state["last"], maxlen=self.policy.window)
        self.spikes = [Spike(**{**each, "skipped": tuple(each["skipped"])}) for each in state["spikes"]]
        self.skipped = set(state["skipped"])

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        last, policy = self._last, self.policy
        return (
            len(last) == policy.window
            and is_spike(loss, last, policy.deviations)
            and is_spike(loss - policy.least, last, 0.0)
        )

    def _remember(self, step: int) -> None:
        """Take a snapshot where one is due, and forget those that are older than will be needed."""
        due = step % self.policy.every == 0 or not self._snapshots
        if due and not (self._snapshots and self._snapshots[-1][0] == step):
            self._snapshots.append((step, TrainingSnapshot.of(self.training)))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= step - self.policy.before:
            self._snapshots.popleft()

    def _go_back(self, step: int, batch: int, loss: float) -> int:
        """To which step."""
        if len(self.spikes) >= self.policy.most:  # those of the checkpoint it resumes, too
            raise TooManySpikes(
                f"the loss is {loss:.3g} in step {step + 1}, and {self.policy.most} spikes are enough: the state or "
                "the settings are at fault; try a smaller --learning-rate, or more --spike-most"
            )
        while len(self._snapshots) > 1 and self._snapshots[-1][0] > step - self.policy.before:
            self._snapshots.pop()
        back, snapshot = self._snapshots[-1]
        left_out = range(self.batch_of(back), batch + self.policy.beyond + 1)
        spike = Spike(step, loss, back, tuple(each for each in left_out if each not in self.skipped))
        spikes, skipped = [*self.spikes, spike], self.skipped.union(left_out)
        snapshot.restore(self.training)  # also the losses of this guard, which is a part of the training's state
        self.spikes, self.skipped = spikes, skipped
        return back

"""When a run saves, and what it must know to go on as if nothing had happened.

A batch is a function of the step (`reference.models.data`), so the number of steps is all there is to know of the
reader: on any number of ranks, no sample is lost and none read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reference.errors import BadInput
from reference.zero import checkpoint

if TYPE_CHECKING:
    from reference.train import Training


@dataclass(frozen=True)
class Saves:
    """Checkpoints of a run in a folder of its own. See `reference.zero.checkpoint`."""

    folder: Path
    every: int = 100  # steps; the last one is saved, too
    resume: bool = False  # go on from the newest in the folder

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadInput(f"a checkpoint is saved every 1 step or more, not {self.every}")

    def begin(self, training: Training) -> int:
        """How many steps have been taken: 0, or those of the checkpoint that is loaded.

        Raises:
            BadInput: if there is nothing to go on from, or something that a new run would replace.
        """
        if not self.resume:
            if found := checkpoint.latest(self.folder):
                raise BadInput(f"{found} is of a run before: say --resume to go on from it, or save somewhere else")
            return 0
        step, extra = checkpoint.load(self.folder, training.form, training.optimizer, training.group)
        for name, value in self._learned(training).items():
            if extra["learned"][name] != value:
                raise BadInput(f"{self.folder} is of a run with {name} {extra['learned'][name]}, and this has {value}")
        training.scaler.load_state_dict(extra["scaler"])
        return step

    def due(self, step: int, last: int) -> bool:
        """Whether to save after `step` steps, of `last`."""
        return step % self.every == 0 or step == last

    def save(self, training: Training, step: int) -> None:
        """Save a checkpoint.

        Raises:
            BadInput: if that cannot be done. Those before it are still there.
        """
        extra = {"scaler": training.scaler.state_dict(), "learned": self._learned(training)}
        checkpoint.save(self.folder, training.form, training.optimizer, step, extra, training.group)

    def _learned(self, training: Training) -> dict[str, int]:
        """What decides which tokens a step reads: another value, and samples would be lost or read twice."""
        config, text = training.config, training.batches.text
        return {"batch": config.batch, "sequence": config.sequence, "seed": config.seed, "text of bytes": len(text)}

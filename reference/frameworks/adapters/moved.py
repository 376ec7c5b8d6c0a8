"""A run that moves: a third of it by ours, a third by a framework from our checkpoint, a third by ours from its.

What a framework has loaded it saves at once, and that must be what it was given, in each bit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from reference.frameworks import moving
from reference.frameworks.adapters import ours
from reference.frameworks.plain import Course
from reference.plan import DataParallelism, Plan
from reference.zero import checkpoint


class Movable(Protocol):
    """A framework with our model. All ranks call these together."""

    def load(self, contents: moving.Contents) -> None:
        """Take the place of what holds these."""

    def step(self, number: int) -> float:
        """Train on one batch. Returns the loss of this rank's part."""

    def saved(self) -> moving.Contents | None:
        """Save, and read that again on rank 0."""


def losses(course: Course, there: Movable) -> Iterator[float]:
    """All steps."""
    third, folder = course.steps // 3, Path(course.folder)
    yield from by_ours(course, range(third), to=folder / "ours")
    given = moving.ours(folder / "ours")
    there.load(given)
    require_same(given, there.saved())
    yield from (there.step(number) for number in range(third, 2 * third))
    if found := there.saved():
        moving.to_ours(*found, folder / "back")
    dist.barrier()
    yield from by_ours(course, range(2 * third, course.steps), begin=folder / "back")


def require_same(given: moving.Contents, found: moving.Contents | None) -> None:
    """See that what was saved is what was loaded, on the rank that has read it.

    Raises:
        RuntimeError: if it is not, with the names.
    """
    if found and (differing := moving.unlike(given, found)):
        raise RuntimeError(f"loaded and saved again, these are other ones: {', '.join(differing)}")


def by_ours(course: Course, steps: range, begin: Path | None = None, to: Path | None = None) -> Iterator[float]:
    """Some steps of our FSDP, from a checkpoint or to one."""
    training = ours.training_of(course, Plan(data_parallel=DataParallelism.FSDP))
    if begin:
        checkpoint.load(begin, training.form, training.optimizer, dist.group.WORLD)
    yield from ours.trained(training, steps)
    if to:
        checkpoint.save(to, training.form, training.optimizer, steps.stop, {}, dist.group.WORLD)

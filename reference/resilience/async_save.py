"""Checkpoints that are written while training continues: a step waits for a copy in memory, and not for the disk.

This is `plain.save_behind` with: any plan, checksums, the folder of `reference.zero.checkpoint_folder`, agreement
without a wait, and one line where something fails.

    save          all ranks, between two steps: copy what this rank will write into memory of its own
    write         a thread on each rank, while training continues: its file, fsync, checksum. It sends no message
    at_boundary   all ranks, between two later steps: once all have written, a thread on rank 0 seals (metadata,
                  manifest, fsync, rename), and deletes what is too old; at a boundary after that, all know it

What holds at every moment:

- No later value gets in. Elements are copied before `save` returns, all else is text or numbers by then.
- A checkpoint has its name only when all ranks' bytes are on the disk, and all ranks have said so. Older ones stay
  until then.
- Ranks agree in the main thread, between steps. A thread that called `all_reduce` on a group of the training would mix
  its messages with those of the step.
- One save at a time. One that is due while the last is still being written waits for it. To leave it out would let a
  slow disk lose more steps than the interval says, without a word; a second copy would take the memory again.
  (CheckFreq waits there, too.)

The copy takes the memory of what this rank writes, once: the same memory serves every save. Of what all replicas hold,
each copies the share that it writes. On a GPU the copy is in page-locked memory of the CPU.

Mohan et al. 2021, "CheckFreq: frequent, fine-grained DNN checkpointing" (FAST).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from reference.data_parallel.gradient_sync import GradientSync, ParameterShard
from reference.zero.agreement import anywhere
from reference.zero.checkpoint import Begun, Steps, begin, in_steps, proceed
from reference.zero.checkpoint_remembered import held_parts
from reference.zero.checkpoint_state import held_values
from reference.zero.checkpoint_write import WritePlan, plan_of
from reference.zero.chunk import Chunk

from .file_image import FileImage


class BackgroundCheckpoints:
    """The checkpoints of one run, each written behind training. All ranks call each method together.

    Args:
        folder: of checkpoints, of this run alone, the same one for all ranks.
        form: whose masters to save.
        optimizer: over these masters.
        group: all ranks of the form. Its messages are sent by the thread that calls, between two steps.
        keep: so many of the last checkpoints stay in the folder.
    """

    def __init__(
        self, folder: Path | str, form: GradientSync, optimizer: Optimizer, group: ProcessGroup, keep: int = 2
    ) -> None:
        self.folder, self.form, self.optimizer, self.group, self.keep = Path(folder), form, optimizer, group, keep
        self.last: Path | None = None  # that was finished
        self._copy = Copy(group)
        self._steps: Steps | None = None  # of the save that is under way
        self._doing: Future | None = None  # this rank's part of its present step

    def save(self, step: int, extra: Mapping[str, Any]) -> None:
        """Copy, and begin to write. Waits for the save before, if that is not finished.

        Args:
            step: how many were taken.
            extra: as for `reference.zero.checkpoint.save`.

        Raises:
            BadInput: the same on every rank, if this cannot begin, or the save before has failed. The message names the
                newest checkpoint that is there.
        """
        self.wait()
        begun = begin(self.folder, self.form, self.optimizer, step, extra, self.group)
        held = held_values(held_parts(self.form, self.optimizer), self.optimizer.state)
        plan, image = self._copy.of(held, layout(begun))
        steps = in_steps(begun, plan, image.write, self.group, self.keep)
        self._doing = in_thread(next(steps))
        self._steps = steps

    @property
    def busy(self) -> bool:
        """Whether this rank's thread is at work."""
        return self._doing is not None and not self._doing.done()

    def at_boundary(self) -> None:
        """Between two steps: continue the save that is under way if no rank's thread is at work. Never waits for one.

        Raises:
            BadInput: the same on every rank, if it has failed. The message names the newest checkpoint that is there.
        """
        if self._steps and not any(anywhere([self.busy], self.group)):
            self.proceed()

    def proceed(self) -> None:
        """Wait for every rank's thread, and let it do what comes next. Without a save under way, nothing.

        Raises:
            BadInput: as `at_boundary`.
        """
        if self._steps is None:
            return
        steps, doing, self._steps, self._doing = self._steps, self._doing, None, None
        after = proceed(steps, doing.result, self.group)
        if callable(after):
            self._steps, self._doing = steps, in_thread(after)
        else:
            self.last = after

    def wait(self) -> Path | None:
        """Until nothing is under way. Returns the last checkpoint of this run that was finished.

        Raises:
            BadInput: as `at_boundary`.
        """
        while self._steps:
            self.proceed()
        return self.last


def in_thread(do: Callable[[], Any]) -> Future:
    """Do something in a thread of its own, which ends with it. A process that exits waits for it."""
    done: Future = Future()

    def run() -> None:
        try:
            done.set_result(do())
        except BaseException as error:
            done.set_exception(error)  # raised where the result is asked for

    Thread(target=run, name="checkpoint").start()
    return done


def layout(begun: Begun) -> list[tuple]:
    """Of all that ranks hold, as they have agreed on it: names, shapes and dtypes. Where ranks cut it never changes."""
    described = (*begun.contents["parameters"].items(), *begun.contents["remembered"].items())
    return [(name, each["shape"], each["dtype"], each["elements"]) for name, each in described]


class Copy:
    """Memory for what this rank writes, and the plan of who writes what. Both serve as long as the layout stays."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self._layout: list[tuple] | None = None
        self._plan: WritePlan | None = None
        self.image: FileImage | None = None

    def of(self, held: Mapping[str, tuple[ParameterShard, Tensor]], layout: list[tuple]) -> tuple[WritePlan, FileImage]:
        """Copy what this rank writes of what it holds. All ranks call this together.

        Args:
            held: by this rank.
            layout: of all that ranks hold, the same on every rank.

        Returns:
            The plan, and this rank's file, whose memory the next call uses again.
        """
        if layout != self._layout:  # the first time, and once the optimizer has state
            chunks = {name: Chunk(part, values) for name, (part, values) in held.items()}
            self._plan, self._layout = plan_of(chunks, self.group), layout
            self.image = FileImage(self._plan, self._plan.own(chunks))
        self.image.fill(held)
        return self._plan, self.image

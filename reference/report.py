"""What a training run says while it runs: one `StepReport` after another, as a line to read or as a line of a file.

What follows a run from outside (a progress bar, a plot, a person with `tail -f`) reads the file while it
grows. The ranks never wait for a reader, and the file stays as a record of the run.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepReport:
    """One step of the whole job, all ranks together."""

    step: int  # steps done, this one included
    loss: float  # nats per token of this step's batch, before its update
    gradient_norm: float  # before clipping
    tokens: int  # seen in all steps
    seconds: float  # since this run began
    began: int = 0  # steps done before it, where it resumes from a checkpoint
    busiest: float | None = None  # tokens of the busiest expert of any layer, as a multiple of the mean; None without
    dropped: float | None = None  # share of choices that found no room in an expert

    @property
    def rate(self) -> float:
        """Tokens per second of this run."""
        return self.tokens * (self.step - self.began) / self.step / self.seconds

    def left(self, steps: int) -> float:
        """Seconds until `steps` are done, at this rate."""
        return self.seconds / (self.step - self.began) * (steps - self.step)


Report = Callable[[StepReport], None]


def silent(step: StepReport) -> None:
    """Say nothing: the report of every rank but one."""


def printer(steps: int, every: int) -> Report:
    """A report that prints the first step, every `every`-th, and the last of `steps`."""

    def report(step: StepReport) -> None:
        if step.step in (1, steps) or step.step % every == 0:
            print(line(step, steps), flush=True)

    return report


def line(step: StepReport, steps: int) -> str:
    """A step in one line, for a person: `step  20/300   loss 2.871   24,103 tokens/s   12 s left`."""
    return (
        f"step {step.step:>{len(str(steps))}}/{steps}   loss {step.loss:.3f}   "
        f"{step.rate:,.0f} tokens/s   {step.left(steps):.0f} s left{of_experts(step)}"
    )


def of_experts(step: StepReport) -> str:
    """What a line says besides of a model with experts: how uneven they are, and what found no room."""
    if step.busiest is None:
        return ""
    dropped = f", {step.dropped:.1%} dropped" if step.dropped else ""
    return f"   busiest expert {step.busiest:.1f} times the mean{dropped}"


def held_out(loss: float, whose: str = "") -> str:
    """The loss on text that was not trained on, in nats per byte, for a person; `whose`, such as " of island 0"."""
    advice = "" if math.isfinite(loss) else ": training has diverged, try a smaller --learning-rate"
    return f"held-out loss{whose} {loss:.3f} nats per byte{advice}"


def logger(path: Path) -> Report:
    """A report that appends each step to the file at `path`, one JSON object a line."""

    def report(step: StepReport) -> None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(step)) + "\n")

    return report


def read_log(path: Path, after: int = 0) -> tuple[list[StepReport], int]:
    """The steps that a log holds beyond byte `after`, and the byte to continue from.

    A line that is still being written is left for the next call.
    """
    with path.open("rb") as file:
        file.seek(after)
        whole, _, _ = file.read().rpartition(b"\n")
    steps = [StepReport(**json.loads(text)) for text in whole.splitlines()]
    return steps, after + len(whole) + bool(whole)

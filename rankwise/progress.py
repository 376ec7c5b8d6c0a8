"""How a run is shown while it runs: its log grows, and we read along."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from reference.report import Report, StepReport, printer, read_log

LOOK = 0.1  # seconds between two looks at the log


@contextmanager
def following(log: Path, steps: int, console: Console) -> Iterator[None]:
    """While the body runs, show the steps that are added to `log`: as a bar in a terminal, else as lines."""
    end, finished = log.stat().st_size, threading.Event()
    with bar(steps, console) if console.is_terminal else lines(steps) as show:
        reader = threading.Thread(target=_read_along, args=(log, end, show, finished), daemon=True)
        reader.start()
        try:
            yield
        finally:
            finished.set()
            reader.join()


def _read_along(log: Path, position: int, show: Report, finished: threading.Event) -> None:
    last_look = False
    with suppress(BrokenPipeError):  # there is no reader any more, as with `head`: the run continues, and its log
        while not last_look:
            last_look = finished.wait(LOOK)
            steps, position = read_log(log, position)
            for step in steps:
                show(step)


@contextmanager
def lines(steps: int) -> Iterator[Report]:
    """A line for every tenth of the way."""
    yield printer(steps, every=max(1, steps // 10))


@contextmanager
def bar(steps: int, console: Console) -> Iterator[Report]:
    """A bar with loss, tokens/s and time left."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting ranks", total=steps)

        def show(step: StepReport) -> None:
            progress.update(task, completed=step.step, description=describe(step, steps))

        yield show


def describe(step: StepReport, steps: int) -> str:
    """What stands beside the bar."""
    return f"loss {step.loss:.3f} · {step.rate:,.0f} tokens/s · {step.left(steps):.0f} s left"

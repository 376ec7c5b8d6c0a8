"""A learner's own solution as a function, to run and look at: `cluster.trace(yours("ranks.ring_shift"), x)`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Schedule

from .. import catalog
from .course import Course, here
from .puzzle import Case
from .schedules import orders_of


@dataclass(frozen=True)
class Text:
    """A function that is known by its text. It travels to ranks as such, and is compiled where it is called."""

    source: str
    filename: str
    entry: str

    @property
    def __name__(self) -> str:  # type: ignore[override]
        return self.entry

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # where inspect.signature looks for the arguments
            return _compiled(self)
        raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _compiled(self)(*args, **kwargs)


@functools.lru_cache(maxsize=32)
def _compiled(text: Text) -> Callable[..., Any]:
    module = ModuleType(text.entry)
    exec(compile(text.source, text.filename, "exec"), module.__dict__)
    return getattr(module, text.entry)


def your_schedule(name: str, *, course: Course | None = None, ranks: int, **parameters: Any) -> Schedule:
    """What `yours` orders all ranks of a pipeline to compute: `draw(your_schedule("gpipe_order", ranks=4, m=8))`.

    Args:
        name: of a schedule puzzle.
        course: as for `yours`.
        ranks: of the pipeline.
        parameters: the others of the puzzle's cases, such as m.

    Raises BadInput where the puzzle asks for no schedule, ranks are none, or a parameter is missing.
    """
    puzzle, case = catalog.find(name), Case(ranks, parameters=tuple(parameters.items()))
    if puzzle.pipe is None:
        raise BadInput(f"{puzzle.name} asks for no schedule")
    if ranks < 1:
        raise BadInput(f"ranks={ranks} make no pipeline: it has one at least")
    if missing := [f"{each}=" for each, _ in puzzle.cases[0].parameters if each not in parameters]:
        raise BadInput(f"the schedule of {puzzle.name} depends on more than ranks: give {', '.join(missing)}, too")
    pipe = puzzle.pipe(case)
    return orders_of(yours(name, course=course), pipe, [puzzle.inputs(case, rank) for rank in range(pipe.ranks)])


def yours(name: str, *, course: Course | None = None) -> Callable[..., Any]:
    """The last solution of the learner that has passed; the reference function where there is none yet.

    Args:
        name: of the puzzle.
        course: where the history is; the course that this package belongs to by default.
    """
    course = course or here()
    puzzle = catalog.find(name)
    passed = [attempt for attempt in course.state.history(puzzle.name) if attempt.passed]
    if not passed:
        return puzzle.function
    return Text(passed[-1].source, str(course.file(puzzle)), puzzle.entry)

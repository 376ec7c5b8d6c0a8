"""The learner's own collectives, in the place of the reference: what PyTorch's own training can run on.

    functions = handmade.functions()                       # what has been solved so far
    backend.register(functions)                            # on every rank; then dist.new_group(backend=backend.NAME)

A collective that no solved puzzle serves is missing from `functions()`, and `reference.collectives.backend` takes it
from the reference. Functions are taken from the last attempt that has passed, not from the file: that may be half
written.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .grading.course import Course, here
from .grading.my_solution import yours

PUZZLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "broadcast": ("broadcast_tree", "broadcast_chain", "broadcast_naive"),
        "reduce": ("reduce_tree",),
        "scatter": ("scatter",),
        "gather": ("gather",),
        "all_gather": ("ring_all_gather",),
        "reduce_scatter": ("ring_reduce_scatter",),
        "all_reduce": ("ring_all_reduce", "halving_doubling", "recursive_doubling", "wrong_ring", "naive_all_reduce"),
        "all_to_all": ("pairwise_all_to_all",),
        "all_to_all_uneven": ("uneven_all_to_all",),
        "barrier": ("barrier",),
    }
)
"""For each collective of the backend, the puzzles of the chapter `collectives` whose solutions serve it, best first."""


def serving(course: Course | None = None) -> dict[str, str]:
    """For each collective that the learner serves, the puzzle whose solution does."""
    state = (course or here()).state
    solved = {
        name: [each for each in puzzles if state.passed(f"collectives.{each}")] for name, puzzles in PUZZLES.items()
    }
    return {name: f"collectives.{puzzles[0]}" for name, puzzles in solved.items() if puzzles}


def functions(course: Course | None = None) -> dict[str, Callable[..., None]]:
    """The learner's functions by the names of `reference.collectives.backend`. They travel to ranks as their text.

    Args:
        course: where the history is; the course that this package belongs to by default.
    """
    return {name: yours(puzzle, course=course) for name, puzzle in serving(course).items()}

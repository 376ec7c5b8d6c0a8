"""The engine that checks puzzles.

`check(name)` grades the learner's file and `check(name, solution)` another text, file or function; both return a
`Verdict`. How it works: `engine`. How a puzzle is described: `puzzle` and `puzzles.catalog`.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Course": "course",
    "Puzzle": "puzzle",
    "Verdict": "verdict",
    "check": "checking",
    "grade": "engine",
    "hint": "hints",
    "predict": "predictions",
    "reset": "checking",
    "reveal": "predictions",
    "solution": "checking",
    "your_schedule": "my_solution",
    "yours": "my_solution",
}

__all__ = [
    "Course",
    "Puzzle",
    "Verdict",
    "check",
    "grade",
    "hint",
    "predict",
    "reset",
    "reveal",
    "solution",
    "your_schedule",
    "yours",
]


def __getattr__(name: str) -> Any:
    """Import on first use: ranks need only the driver, and a command line that lists puzzles needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

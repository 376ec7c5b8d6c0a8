"""What a learner edits: puzzles/<chapter>/<puzzle>.py, one puzzle a file. `puzzles.grading` checks them.

In a notebook: `%load_ext puzzles`, then `%%puzzle <name>` on top of a cell, or `from puzzles import check, hint`.
`%%ranks 4` on top of a cell runs it on 4 ranks, `%%rank 0,2` on some of them.
"""

from typing import Any

__all__ = ["check", "hint", "predict", "reset", "reveal", "solution", "your_schedule", "yours"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import grading

    return getattr(grading, name)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext puzzles` calls."""
    from .grading import notebook

    notebook.load(shell)

"""Warnings of what torch will drop one day: they are for the course's authors, and no learner's cell shows them."""

import os
import warnings

_KINDS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # the last is what torch raises mostly


def hide() -> None:
    """Show none from now on, in this process and on ranks that it starts."""
    for kind in _KINDS:
        warnings.filterwarnings("ignore", category=kind)
    warnings.filterwarnings("ignore", message=r"(?s).*\bdeprecated\b", category=UserWarning)  # of older parts of torch
    said = os.environ.get("PYTHONWARNINGS", "").split(",")
    ours = [f"ignore::{kind.__name__}" for kind in _KINDS]
    os.environ["PYTHONWARNINGS"] = ",".join([*(each for each in said if each and each not in ours), *ours])

"""What must hold of any right training: on ranks, with a learner's functions in their seats."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from reference.data_parallel import gather_full

from .engines import STEPS, Machine
from .parts import Function, steps, training_of


def run(machine: Machine, functions: Mapping[str, Function], last: int = STEPS) -> dict[str, Any]:
    """Take the first steps of an engine. On each rank: plain data alone."""
    calls: Counter[str] = Counter()
    training = training_of(machine, functions, calls)
    losses, norms = steps(training, 0, last)
    return {"losses": losses, "norms": norms, "parameters": gather_full(training.form), "calls": dict(calls)}

"""Four ways to train in a pipeline: one that flushes, and three that never do.

Stage s of p, m micro-batches in an update; delays in updates, from the weights that are seen to those that are updated;
all in the long run, when the pipeline is full.

| method          | delay of forward | of backward   | versions of the weights  | bubble of a run |
|-----------------|------------------|---------------|--------------------------|-----------------|
| 1F1B, flushing  | 0                | 0             | 1                        | each step       |
| PipeDream       | (p - 1 - s) / m  | as in forward | 1 + ⌈(p - 1 - s) / m⌉    | once            |
| PipeDream-2BW   | 1, if p > 1      | 1             | 2, if p > 1; m >= p - 1  | once            |
| PipeMare        | (p - 1 - s) / m  | 0             | 1, and a velocity        | once            |

PipeDream updates after every micro-batch, m = 1: then stage s keeps p - s versions, the first stage as many as there
are stages. The paper of 2BW asks for m >= p; m = p - 1 is just enough. With p = 1 all four are plain training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Schedule

from .pipemare import PipeMareOptions
from .versions import Policy, joined, newest, stashed, two_buffers

Formula = Callable[[int, int, int], float]
"""Of p stages, m micro-batches in an update, and the number of a stage."""


@dataclass(frozen=True)
class Method:
    """What a method decides, and what it promises."""

    name: str
    seen: Policy
    forward_delay: Formula  # updates
    backward_delay: Formula  # updates
    versions: Formula  # of its weights that a stage keeps
    micro_batches: Callable[[int], int]  # of an update over p stages: as few as it is meant for
    flushes: bool = False
    pipemare: PipeMareOptions | None = None  # of PipeMare

    def order(self, p: int, m: int, updates: int) -> Schedule:
        """What a whole run computes: 1F1B over all of its micro-batches, or over those of each update.

        Args:
            p: stages, one on each rank.
            m: micro-batches in an update.
            updates: of the run.
        """
        warm_up = self.pipemare.warm_up if self.pipemare else 0
        flushed = updates if self.flushes else min(warm_up, updates)
        parts = [m] * flushed + [m * (updates - flushed)] * (flushed < updates)
        return joined([one_f_one_b(p, part) for part in parts])


def _none(p: int, m: int, stage: int) -> float:
    return 0


def _one(p: int, m: int, stage: int) -> float:
    return 1


def _meanwhile(p: int, m: int, stage: int) -> float:
    """How much of an update goes backward between forward and backward of a micro-batch."""
    return (p - 1 - stage) / m


def _stash(p: int, m: int, stage: int) -> float:
    """The newest, and what it was before each update that is made meanwhile."""
    return 1 + math.ceil(_meanwhile(p, m, stage))


def _one_behind(p: int, m: int, stage: int) -> float:
    return min(p - 1, 1)


def _two(p: int, m: int, stage: int) -> float:
    return min(p, 2)


def _single(p: int) -> int:
    return 1


def _one_a_stage(p: int) -> int:
    return p


FLUSHING = Method("1F1B with a flush", newest, _none, _none, _one, _one_a_stage, flushes=True)
PIPEDREAM = Method("PipeDream", stashed, _meanwhile, _meanwhile, _stash, _single)
TWO_BUFFERED = Method("PipeDream-2BW", two_buffers, _one_behind, _one_behind, _two, _one_a_stage)
PIPEMARE = Method("PipeMare", newest, _meanwhile, _none, _one, _single, pipemare=PipeMareOptions(updates=100))
UNCORRECTED = replace(PIPEMARE, name="no remedy", pipemare=None)  # what PipeMare would be without them
METHODS = (FLUSHING, PIPEDREAM, TWO_BUFFERED, PIPEMARE)

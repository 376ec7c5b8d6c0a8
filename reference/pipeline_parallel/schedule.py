"""A pipeline schedule as data: what each rank computes in one step, and in which order.

    F0.3    forward of stage 0 on micro-batch 3
    B0.3    its backward: the gradients of input and weights
    I0.3    the first half of a split backward: the gradient of the input, for which the stage before is waiting
    W0.3    the second half: the gradients of the weights, for which no rank waits before the step ends

Nothing is said of messages, of summing gradients or of gathering parameters: where these belong follows from the order.
So a new schedule is a few lines of code, and everything else is there: proof, simulation, picture, and a run on ranks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from reference.errors import BadInput


class Kind(StrEnum):
    """What is computed."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """One stage computes something of one micro-batch. Prints as `F0.3`."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action that prints as `text`.

        Raises:
            BadInput: if none does.
        """
        if not (found := re.fullmatch(r"([FBIW])(\d+)\.(\d+)", text)):
            raise BadInput(f"an action is one of F, B, I and W, a stage and a micro-batch, such as F0.3, not {text!r}")
        return cls(Kind(found[1]), int(found[2]), int(found[3]))


@dataclass(frozen=True)
class Schedule:
    """What every rank computes in one step.

    Prints as a line for each rank. Whether it makes sense, `validate` says.
    """

    lines: tuple[tuple[Action, ...], ...]  # of each rank
    placement: tuple[int, ...]  # of each stage, the rank that computes it
    routes: tuple[tuple[int, ...], ...]  # of each micro-batch, the stages that it passes forward, in order

    @classmethod
    def straight(cls, lines: Iterable[Iterable[Action]], placement: Iterable[int], micro_batches: int) -> "Schedule":
        """One whose micro-batches all pass all stages in order."""
        placement = tuple(placement)
        return cls(tuple(map(tuple, lines)), placement, (tuple(range(len(placement))),) * micro_batches)

    def first(self, micro_batches: int) -> "Schedule":
        """The same for its first micro-batches alone.

        Leaving out micro-batches harms no order: what waited for them waits for less. So code that can order many may
        order more than there are.
        """
        kept = tuple(tuple(action for action in line if action.micro_batch < micro_batches) for line in self.lines)
        return Schedule(kept, self.placement, self.routes[:micro_batches])

    @property
    def ranks(self) -> int:
        """How many ranks compute."""
        return len(self.lines)

    @property
    def stages(self) -> int:
        """How many stages there are, of all ranks together."""
        return len(self.placement)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step has."""
        return len(self.routes)

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank, by number."""
        return tuple(stage for stage, owner in enumerate(self.placement) if owner == rank)

    @cached_property
    def neighbours(self) -> tuple[dict[int, tuple[int | None, int | None]], ...]:
        """For each micro-batch, by the stages on its route: those before and after them."""
        of_route = {
            route: dict(zip(route, zip((None, *route[:-1]), (*route[1:], None), strict=True), strict=True))
            for route in set(self.routes)
        }
        return tuple(of_route[route] for route in self.routes)

    def before(self, stage: int, micro_batch: int) -> int | None:
        """The stage from which a micro-batch comes to this one, None if it begins here."""
        return self.neighbours[micro_batch][stage][0]

    def after(self, stage: int, micro_batch: int) -> int | None:
        """The stage to which a micro-batch goes from this one, None if it ends here."""
        return self.neighbours[micro_batch][stage][1]

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, line)) for line in self.lines)

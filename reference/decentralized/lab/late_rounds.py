"""Rounds that come late, on a clock that is counted: `python -m reference.decentralized.lab.late_rounds`.

Four islands, of which the last needs six times as long for a step as the first. All ways take as many inner steps
together. No process waits and nothing sleeps: what comes first follows from the speeds, so a run is the same each time.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..late_rounds import DelayedNesterov, Round, local_rounds, steps_by_speed
from .least_squares import LeastSquares

PROBLEM = LeastSquares.drawn(size=40, examples=2000)
SECONDS = (1.0, 2.0, 3.0, 6.0)  # of a step, by island
H, STEPS, RATE = 12, 960, 0.02
RATE_OUTSIDE, MOMENTUM = 0.7, 0.9
ISLANDS = len(SECONDS)


@dataclass(frozen=True)
class LateRun:
    """What came of a way to train.

    Attributes:
        loss: at the end.
        best: the least loss that there is.
        seconds: on the counted clock.
        steps: inner steps of all islands.
        most_late: outer steps between reading an anchor and changing it, at most.
    """

    loss: float
    best: float
    seconds: float
    steps: int
    most_late: int


def islands(steps: Sequence[int]) -> list[Round]:
    """An island for each number of steps of a round."""

    def island(number: int) -> Round:
        weights = torch.zeros(PROBLEM.size, dtype=torch.float64)

        def step(taken: int) -> None:
            weights.sub_(PROBLEM.gradient(number, taken, weights), alpha=RATE)

        return local_rounds([weights], step, steps[number])

    return [island(number) for number in range(len(steps))]


def in_turn(steps: Sequence[int], outer: DelayedNesterov, waits: bool = False) -> LateRun:
    """Train until all steps are taken.

    Args:
        steps: of a round of each island.
        outer: what a change does.
        waits: each island for all others, at the end of a round.
    """
    rounds, anchor = islands(steps), torch.zeros(PROBLEM.size, dtype=torch.float64)
    coming: list[tuple[float, int, int, int]] = []  # when, of whom, of which version, which round
    read: dict[int, Tensor] = {}
    taken, version, most_late, clock = 0, 0, 0, 0.0

    def begin(island: int, number: int) -> None:
        read[island] = anchor.clone()
        heapq.heappush(coming, (clock + steps[island] * SECONDS[island], island, version, number))

    for island in range(ISLANDS):
        begin(island, 0)
    while taken < STEPS:
        clock, island, of, number = heapq.heappop(coming)
        outer.step(anchor, rounds[island](number, read[island]))
        most_late = max(most_late, version - of)
        version, taken = version + 1, taken + steps[island]
        if not waits:
            begin(island, number + 1)
        elif not coming:
            for each in range(ISLANDS):
                begin(each, number + 1)
    return LateRun(PROBLEM.loss(anchor), PROBLEM.best, clock, taken, most_late)


def of_islands(changes: int = ISLANDS, rate: float = RATE_OUTSIDE) -> DelayedNesterov:
    """An outer optimizer."""
    return DelayedNesterov(torch.zeros(PROBLEM.size, dtype=torch.float64), changes, rate, MOMENTUM)


WAYS = (
    "synchronous",
    "asynchronous, Nesterov for each",
    "asynchronous, delayed Nesterov",
    "delayed Nesterov, steps by speed",
)


def compared() -> Iterator[LateRun]:
    """A run for each of `WAYS`. A change that is a whole outer step counts 1 / sqrt(n), as in the paper's own toy."""
    equal = [H] * ISLANDS
    by_speed = steps_by_speed(H, [1 / each for each in SECONDS])
    yield in_turn(equal, of_islands(), waits=True)
    yield in_turn(equal, of_islands(1, RATE_OUTSIDE / ISLANDS**0.5))
    yield in_turn(equal, of_islands())
    yield in_turn(by_speed, of_islands())


def main() -> None:
    """Print the table."""
    print(f"{STEPS} steps of {ISLANDS} islands, H = {H}; the best loss is {PROBLEM.best:.5f}\n")
    print(f"{'':36}{'loss':>10}{'seconds':>9}{'most late':>11}")
    for name, each in zip(WAYS, compared(), strict=True):
        print(f"{name:36}{each.loss:10.5f}{each.seconds:9,.0f}{each.most_late:11}")


if __name__ == "__main__":
    main()

"""Asynchronous DiLoCo: an island says what its round has changed as soon as the round ends, and waits for no other.

This is `plain.diloco` over a `parameter_server`, with: momentum that waits until as many changes have come as there are
islands, rounds that are shorter on slower islands, and a replay from the record. Liu et al. 2024, arXiv:2401.09135.

    H steps each    fast   |-- 4 --|-- 4 --|-- 4 --|-- 4 --|
                    slow   |------ 4 ------|------ 4 ------|     its change is of an anchor two outer steps old
    fewer steps     slow   |-- 2 --|-- 2 --|-- 2 --|-- 2 --|     of the one before

Nesterov momentum that takes each change as a gradient counts a direction that n islands have found n times, and old
ones with it. Delayed Nesterov moves the anchor by an n-th of each change at once, and by momentum once for n changes.
Where n changes are all of one anchor, they make the outer step of DiLoCo.

In a round an island sends Ψ and a number, and gets as much; the server's link carries that of all islands.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reference.errors import BadInput

from .meeting import fill, flat
from .parameter_server import Arrival, ParameterServer, StepSize, constant
from .plain import Inner

Round = Callable[[int, Tensor], Tensor]
"""Of an island: the number of its round, from 0 on, and an anchor [N]. Returns anchor - parameters after it: [N]."""
ALL_ALIKE = constant(1.0)


class DelayedNesterov:
    """An outer optimizer for changes that come one at a time (Liu et al. 2024, algorithm 3, with c = 0).

    Args:
        like: [N], the anchor.
        changes: n, after how many momentum moves; the number of islands.
        rate, momentum: as for `plain.diloco`.

    Raises:
        BadInput: if momentum never moves.
    """

    def __init__(self, like: Tensor, changes: int, rate: float = 0.7, momentum: float = 0.9) -> None:
        if changes < 1:
            raise BadInput(f"momentum moves after 1 change or more, not after {changes}: take the number of islands")
        self.velocity, self.waiting = torch.zeros_like(like), torch.zeros_like(like)
        self.changes, self.rate, self.momentum, self.came = changes, rate, momentum, 0

    def step(self, anchor: Tensor, change: Tensor) -> None:
        """Move the anchor [N], in place, by a change [N]."""
        anchor.sub_(change, alpha=self.rate / self.changes)
        self.waiting += change
        self.came += 1
        if self.came % self.changes == 0:
            self.velocity.mul_(self.momentum).add_(self.waiting, alpha=1 / self.changes)
            anchor.sub_(self.velocity, alpha=self.rate * self.momentum)
            self.waiting.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity.clone(), "waiting": self.waiting.clone(), "came": self.came}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.velocity.copy_(state["velocity"])
        self.waiting.copy_(state["waiting"])
        self.came = state["came"]


class RoundServer(ParameterServer):
    """The anchor, which changes of rounds move. `parameter_server` carries them as it does gradients.

    Args:
        anchor: [N], changed in place.
        islands: ranks that push, one of each.
        outer: what a change does.
        bound: of rounds that an island may be ahead, as for `ParameterServer`.
        weight: of a change, by its staleness.
    """

    def __init__(
        self,
        anchor: Tensor,
        islands: Sequence[int],
        outer: DelayedNesterov,
        bound: int | None = None,
        weight: StepSize = ALL_ALIKE,
    ) -> None:
        super().__init__(anchor, islands, weight, bound)
        self.outer = outer

    def apply(self, change: Tensor, staleness: int) -> None:
        self.outer.step(self.weights, change * self.rate(staleness))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"outer": self.outer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.outer.load_state_dict(state["outer"])


def local_rounds(parameters: Sequence[Tensor], inner_step: Inner, inner_steps: int) -> Round:
    """Rounds of an island that keeps the state of its inner optimizer.

    Args:
        parameters: of this island, overwritten by each anchor.
        inner_step: changes them, with this island's data and its own optimizer.
        inner_steps: of a round of this island.
    """

    def a_round(number: int, anchor: Tensor) -> Tensor:
        fill(parameters, anchor)
        for step in range(number * inner_steps, (number + 1) * inner_steps):
            inner_step(step)
        return anchor - flat(parameters)

    return a_round


def steps_by_speed(inner_steps: int, speeds: Sequence[float]) -> list[int]:
    """The steps of each island's round, so that all rounds take as long (dynamic local updates, Liu et al. 2024).

    Args:
        inner_steps: H, of the fastest.
        speeds: steps a second of each.
    """
    return [max(1, int(inner_steps * speed / max(speeds))) for speed in speeds]


def replay_rounds(
    anchor: Tensor, rounds: Mapping[int, Round], record: Iterable[Arrival], outer: DelayedNesterov
) -> Tensor:
    """The anchor [N] after a recorded run, equal in every bit to that which its server had.

    Args:
        anchor: [N], as the run began.
        rounds: of each island, as they were when the run began: they are taken again.
        record: what the server has applied, in its order.
        outer: as it was when the run began.

    Raises:
        BadInput: for a record that no run has made.
    """
    versions = [anchor.clone()]
    for arrival in record:
        if not 0 <= arrival.read <= arrival.version == len(versions) - 1:
            raise BadInput(f"the record is of a change of version {arrival.read}, and {len(versions)} have been")
        change = rounds[arrival.worker](arrival.step, versions[arrival.read].clone())
        versions.append(versions[-1].clone())
        outer.step(versions[-1], change)
    return versions[-1]

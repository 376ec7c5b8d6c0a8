"""Ranks that go through their lines on paper: each continues while it can take its next step.

    until no rank can continue:
        for each rank:
            while it can take its next step: it does so

Every proof about schedules is this loop, with a `can` and a `does` of its own: sends that block (`validate`), messages
that run in order (`ordering`, `folded`), programs that gather and free (`lab.programs`). Which rank goes first makes no
difference to how far they come, where a step that could be taken can still be taken later.

`simulate` has a loop of its own: searches call it thousands of times, so it asks no function about each action, and it
wakes the one rank that waits for a result instead of asking all.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")


class Walk(Generic[S]):
    """Where ranks are in their lines.

    Args:
        lines: of each rank, its steps in order.
    """

    def __init__(self, lines: Sequence[Sequence[S]]) -> None:
        self.lines = lines
        self.at = [0] * len(lines)  # of each rank, how many steps it has taken

    def go(self, can: Callable[[int, S], bool], does: Callable[[int, S], None]) -> bool:
        """Let each rank take steps while it can, until none can. Returns whether any has moved.

        Args:
            can: whether a rank can take its next step now. It changes nothing.
            does: what happens when it takes it.
        """
        moved = False
        while any([self._advance(rank, can, does) for rank in range(len(self.lines))]):
            moved = True
        return moved

    def _advance(self, rank: int, can: Callable[[int, S], bool], does: Callable[[int, S], None]) -> bool:
        line = self.lines[rank]
        begin = at = self.at[rank]
        while at < len(line) and can(rank, step := line[at]):
            self.at[rank] = at = at + 1
            does(rank, step)
        return at > begin

    def next(self, rank: int) -> S | None:
        """The step that a rank has not taken yet; None if it has finished."""
        line, at = self.lines[rank], self.at[rank]
        return line[at] if at < len(line) else None

    @property
    def waiting(self) -> list[str]:
        """The ranks that have not finished, each with its next step, in words."""
        steps = [(rank, self.next(rank)) for rank in range(len(self.lines))]
        return [f"rank {rank} waits in {step}" for rank, step in steps if step is not None]

"""NoLoCo: islands meet in pairs, drawn anew each round, and no island waits for all.

This is `plain.diloco` with: a partner instead of all, and an outer step that also pulls the two anchors together,
since nothing else would keep islands close (Kolehmainen et al. 2025, arXiv:2506.10911):

    velocity = α velocity - β (mean change of the pair, old - new) - γ (anchor - mean anchor of the pair)
    anchor   = anchor + velocity

α is the outer momentum and β the outer rate. Of two islands that always meet, the anchors' distance d becomes
(1 + α - γ) d - α (d before): it falls off where 0 < γ < 2 + 2α. Here γ is 1 + α / 2.

A rank sends 2Ψ / H a step (its change and its anchor) to one partner, however many islands there are: an all-reduce of
DiLoCo sends nearly as much, in 2 (n-1) messages one after another. At the end of a run islands take their mean.
"""

import random

import torch

from .meeting import AfterStep, Meeting, fill, flat
from .wire import mean


class PairsOfIslands(Meeting):
    """All parameters, at the end of each round, with one other island."""

    def begin(self) -> None:
        self.kept = {"anchor": self.copies(), "outer_velocity": self.zeros()}

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        anchor, velocity = flat(self.kept["anchor"]), flat(self.kept["outer_velocity"])
        own = torch.stack([anchor - flat(self.masters), anchor])
        change, middle = (own + self.exchanged(own, at.taken)) / 2
        rate, momentum = self.meets.outer_rate, self.meets.outer_momentum
        velocity = momentum * velocity - rate * change - (1 + momentum / 2) * (anchor - middle)
        anchor = anchor + velocity
        fill(self.kept["anchor"], anchor)
        fill(self.kept["outer_velocity"], velocity)
        fill(self.masters, mean(anchor, self.across) if at.last else anchor)
        return True

    def exchanged(self, own: torch.Tensor, taken: int) -> torch.Tensor:
        """What the partner of this round says."""
        other = partner(self.across.rank(), self.across.size(), f"{self.seed} {taken}")
        return self.across.start_exchange(own, other, torch.empty_like(own), other)()


def partner(island: int, islands: int, seed: str) -> int:
    """With whom an island meets: each draws the same order of all, and neighbours in it are pairs."""
    order = random.Random(seed).sample(range(islands), islands)
    return order[order.index(island) ^ 1]

"""FedAdam between islands of any plan: what they have changed in the mean is a gradient for Adam.

Reddi et al. 2021, "Adaptive federated optimization", arXiv:2003.00295, algorithm 2; each island is a client:

    mean     = β1 mean   + (1 - β1) change          change: new - old, the mean over islands
    square   = β2 square + (1 - β2) change²         it begins as τ²
    anchor  += rate · mean / (√square + τ)

The arithmetic is `federated.adam_step`, with its β and τ. A step of the anchor is about `rate` in each element, as
long as changes are larger than τ. A rank sends as much as with DiLoCo, and keeps the anchor and two moments, 3Ψ.
"""

import torch

from .diloco import ANCHOR
from .federated import FLOOR, adam_step
from .meeting import AfterStep, Meeting, fill, flat

MEAN, SQUARE = "outer_mean", "outer_square"


class OuterAdam(Meeting):
    """All parameters, at the end of each round."""

    def begin(self) -> None:
        squares = [torch.full_like(master.detach(), FLOOR**2) for master in self.masters]
        self.kept = {ANCHOR: self.copies(), MEAN: self.zeros(), SQUARE: squares}

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        anchor, *moments = (flat(self.kept[name]) for name in (ANCHOR, MEAN, SQUARE))
        change = self.aggregate(flat(self.masters) - anchor, at.taken)
        adam_step(anchor, change, *moments, self.meets.outer_rate)
        for name, values in zip((ANCHOR, MEAN, SQUARE), (anchor, *moments), strict=True):
            fill(self.kept[name], values)
        fill(self.masters, anchor)
        return True

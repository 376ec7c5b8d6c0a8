"""DiLoCo between islands of any plan; local SGD is the same with an outer optimizer that changes nothing.

This is `plain.diloco` with: parts of a model that its island shares out, one message for all of them, few bits, a state
that is saved. With an outer rate of 1 and no momentum the outer step leads from the anchor to the mean of all islands,
which is `plain.local_sgd`.

| in a step                       | a rank sends                                        |
|---------------------------------|-----------------------------------------------------|
| data parallelism, n islands     | 2 (n-1)/n · Ψ, where Ψ is what it holds of a model  |
| local SGD, DiLoCo               | the same / H, in the numbers of `wire`              |

Each rank keeps the anchor and the velocity, 2Ψ, and takes the outer step itself: no parameters are sent.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.islands import WITH_OUTER_OPTIMIZER

from .meeting import AfterStep, Meeting, fill, flat
from .plain import nesterov

ANCHOR, VELOCITY = "anchor", "outer_velocity"


class Diloco(Meeting):
    """All parameters, at the end of each round."""

    def begin(self) -> None:
        self.kept = {ANCHOR: self.copies(), VELOCITY: self.zeros()}

    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        everything = range(len(self.parts))
        self.step(everything, self.aggregate(self.changed(everything), at.taken))
        return True

    def changed(self, which: Sequence[int]) -> Tensor:
        """The pseudo-gradient of some parts, flat: old - new."""
        return flat(self.kept[ANCHOR][i] for i in which) - flat(self.masters[i] for i in which)

    @torch.no_grad()
    def step(self, which: Sequence[int], gradient: Tensor, keep_own: float = 0.0) -> None:
        """An outer step of some parts, from their anchors.

        Args:
            which: of the parts.
            gradient: of these, flat.
            keep_own: the weight of an island's own parameters beside the anchor.
        """
        anchors, velocities = ([self.kept[name][i] for i in which] for name in (ANCHOR, VELOCITY))
        anchor, velocity = flat(anchors), flat(velocities)
        nesterov(anchor, gradient, velocity, *self.outer())
        fill(anchors, anchor)
        fill(velocities, velocity)
        masters = [self.masters[i] for i in which]
        fill(masters, anchor if keep_own == 0 else keep_own * flat(masters) + (1 - keep_own) * anchor)

    def outer(self) -> tuple[float, float]:
        """Rate and momentum; without an outer optimizer those that lead to the mean of all islands."""
        meets = self.meets
        return (meets.outer_rate, meets.outer_momentum) if meets.outer in WITH_OUTER_OPTIMIZER else (1.0, 0.0)

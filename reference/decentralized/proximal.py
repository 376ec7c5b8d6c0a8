"""FedProx between islands of any plan: local SGD with a spring that holds islands near the anchor.

Li et al. 2020, "Federated optimization in heterogeneous networks", arXiv:1812.06127: the loss of an island gets

    μ/2 · |weights - anchor|²        so its gradient gets μ (weights - anchor)

As a part of the loss it is in the gradient before that is clipped, and before any inner optimizer looks at it. With
μ = 0 this is local SGD, in every bit. A rank sends as much as with local SGD.
"""

import torch

from .diloco import ANCHOR, Diloco


class Proximal(Diloco):
    """All parameters, at the end of each round; they are held in between."""

    @torch.no_grad()
    def correct(self, scale: float) -> None:
        for master, anchor in zip(self.masters, self.kept[ANCHOR], strict=True):
            master.grad.add_(master - anchor, alpha=scale * self.meets.proximal)

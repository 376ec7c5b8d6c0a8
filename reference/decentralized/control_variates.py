"""SCAFFOLD between islands of any plan: local SGD in which islands with other data do not drift apart.

Karimireddy et al. 2020, arXiv:1910.06378, algorithm 1. The control c_i says where gradients of island i lead, and c
where those of all do; both begin as zero:

    step     gradient += c - c_i                              before it is clipped
    round    c_i  becomes  the mean of the round's gradients  as they were without a correction
             c   +=  the mean over islands of what c_i has changed

Where a part of the islands counts, the others keep their c_i, and bring nothing to c.

The paper's option II reads that mean off the weights, as c_i - c + (anchor - weights) / (K · rate). With SGD at a
constant rate this is the same number; inside other optimizers, or where gradients are clipped, weights do not tell it,
so it is added up here. Whether the correction helps an inner Adam, the paper does not say.

A rank sends the changes of weights and of controls, twice as much as with DiLoCo, and keeps three tensors more.
"""

from typing import Any

import torch

from .diloco import Diloco
from .meeting import AfterStep, fill, flat

OWN, OF_ALL, SEEN = "own control", "control of all", "seen gradients"
CONTROLS = (OWN, OF_ALL, SEEN)


class ControlVariates(Diloco):
    """All parameters and controls, at the end of each round."""

    def begin(self) -> None:
        super().begin()
        self.kept |= {name: self.zeros() for name in CONTROLS}
        self.steps_seen = 0

    @torch.no_grad()
    def correct(self, scale: float) -> None:
        for master, *controls in zip(self.masters, *(self.kept[name] for name in CONTROLS), strict=True):
            own, of_all, seen = controls
            seen += master.grad / scale
            master.grad.add_(of_all - own, alpha=scale)
        self.steps_seen += 1

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        everything = range(len(self.parts))
        own, of_all, seen = (flat(self.kept[name]) for name in CONTROLS)
        counts, islands = self.aggregate.taking_part(at.taken), self.across.size()
        new = seen / self.steps_seen if self.across.rank() in counts else own
        said = self.changed(everything), (new - own) * (len(counts) / islands)  # of those that count, and of all
        change, control = self.aggregate(torch.cat(said), at.taken).chunk(2)
        self.step(everything, change)
        for name, values in zip(CONTROLS, (new, of_all + control, torch.zeros_like(seen)), strict=True):
            fill(self.kept[name], values)
        self.steps_seen = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"steps seen": self.steps_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps_seen = state["steps seen"]

"""Eager updates: what islands have changed travels during a whole round, and an island's own part counts at once.

This is `plain.diloco` with: a message that has all of the next round to arrive. An outer step takes what this island
has changed in the round that ends, and what the others had changed in the one before (Kale et al. 2025,
arXiv:2502.12996, algorithm 2). In the first round nothing is known of the others. Where one island is alone, it is
DiLoCo. Islands have anchors of their own, and at the end of a run they take their mean.

Bytes as for DiLoCo; the link has the time of H steps for them.
"""

from typing import Any

from .diloco import Diloco
from .meeting import AfterStep, fill, flat
from .streaming import SENT, UnderWay
from .wire import mean, mean_in_stages

OWN = "own_change"


class Eager(Diloco):
    """Others a round late, itself at once."""

    def begin(self) -> None:
        super().begin()
        self.kept |= {SENT: self.zeros(), OWN: self.zeros()}
        self.under_way: UnderWay | None = None

    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        everything, n = range(len(self.parts)), self.across.size()
        changed = self.changed(everything)
        before = self.under_way.wait() - flat(self.kept[OWN]) / n if self.under_way else 0  # of the others
        if not at.last:
            self.under_way = UnderWay(mean_in_stages(changed.clone(), self.across, self.meets.wire), at.taken)
            self.under_way.advance()
            fill(self.kept[OWN], changed)
        self.step(everything, before + changed / n)
        if at.last:
            self.under_way = None
            fill(self.masters, mean(flat(self.masters), self.across))
        return True

    def state_dict(self) -> dict[str, Any]:
        if self.under_way:
            fill(self.kept[SENT], self.under_way.wait())
        super().state_dict()
        return {"sent": self.under_way.sent if self.under_way else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["sent"] is not None:
            self.under_way = UnderWay(iter(()), state["sent"], mean=flat(self.kept[SENT]))

"""Streaming DiLoCo: a fragment of the layers at a time, while inner steps continue.

This is `plain.diloco` with: fragments that are sent at different times, so that the link is never asked for a whole
model at once; a delay between sending and using, in which islands train; few bits. Douillard et al. 2025,
arXiv:2501.18512, algorithm 2.

    H = 6, 2 fragments, a delay of 1     s: sent   u: used

    step          1   2   3   4   5   6   7   8   9  10  11  12  13
    fragment 0                        s   u                   s   u
    fragment 1            s   u                   s   u

What is used after a delay is added to what an island has learned meanwhile: of its own parameters it keeps a part.
Layer i is in fragment i mod P, as in the paper's strided pattern; what is in no layer is in the first.

With one fragment, no delay and nothing kept this is DiLoCo. Peak bandwidth is less by the number of fragments, and a
link has the time of `overlap_steps` steps for each. What is under way when a checkpoint is saved is waited for, and
saved: a resumed run uses it in the step in which it would have.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from reference.islands import Meets

from .diloco import Diloco
from .meeting import AfterStep, fill, flat
from .wire import Stages, mean, mean_in_stages

SENT = "sent_fragment"
LAYER = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


@dataclass
class UnderWay:
    """A fragment that was sent, and is not used yet."""

    stages: Stages
    sent: int  # after so many steps
    finish: Any = None  # what is waited for
    mean: Tensor | None = None

    def advance(self) -> None:
        """Wait for what was started, and start what follows."""
        if self.mean is None:
            try:
                if self.finish is not None:
                    self.finish()
                self.finish = next(self.stages)
            except StopIteration as end:
                self.mean = end.value

    def wait(self) -> Tensor:
        """To the end."""
        while self.mean is None:
            self.advance()
        return self.mean


class Streaming(Diloco):
    """Fragments, each at a time of its own."""

    def begin(self) -> None:
        super().begin()
        self.kept[SENT] = self.zeros()
        self.under_way: dict[int, UnderWay] = {}

    @cached_property
    def members(self) -> list[list[int]]:
        """The parts of each fragment, by their places."""
        layers = [int(found[1]) if (found := LAYER.search(part.name)) else 0 for part in self.parts]
        count = self.meets.fragments
        return [[i for i, layer in enumerate(layers) if layer % count == fragment] for fragment in range(count)]

    def after(self, at: AfterStep) -> bool:
        changed = False
        for fragment in range(self.meets.fragments):
            if not self.members[fragment]:  # of a pipeline's rank that has none of its layers
                continue
            changed |= self.send_or_use(fragment, at)
        return changed

    def send_or_use(self, fragment: int, at: AfterStep) -> bool:
        """What a step asks of a fragment. Returns whether it was used."""
        which, delay = self.members[fragment], self.meets.overlap_steps
        used = False
        if sent := self.under_way.get(fragment):
            if at.taken == sent.sent + delay or at.last:
                self.use(fragment, self.meets.keep_own)
                used = True
            elif at.taken == sent.sent + (delay + 1) // 2:
                sent.advance()
        if at.last:
            self.step(which, mean(self.changed(which), self.across, self.meets.wire))
            return True
        if is_due(self.meets, fragment, at.taken):
            self.under_way[fragment] = UnderWay(
                mean_in_stages(self.changed(which), self.across, self.meets.wire), at.taken
            )
            self.under_way[fragment].advance()
            if delay == 0:
                self.use(fragment, self.meets.keep_own)
                used = True
        return used

    def use(self, fragment: int, keep_own: float) -> None:
        """Take the outer step of a fragment with what has come."""
        self.step(self.members[fragment], self.under_way.pop(fragment).wait(), keep_own)

    def state_dict(self) -> dict[str, Any]:
        for fragment, sent in self.under_way.items():
            fill([self.kept[SENT][i] for i in self.members[fragment]], sent.wait())
        super().state_dict()
        return {"under way": {str(fragment): sent.sent for fragment, sent in self.under_way.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for fragment, sent in state["under way"].items():
            came = flat(self.kept[SENT][i] for i in self.members[int(fragment)])
            self.under_way[int(fragment)] = UnderWay(iter(()), sent, mean=came)


def is_due(meets: Meets, fragment: int, taken: int) -> bool:
    """Whether a fragment is sent after so many steps; after the last one of a run each is."""
    steps = meets.inner_steps
    return (taken - fragment * steps // meets.fragments) % steps == 0

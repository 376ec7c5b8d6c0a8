"""Gossip between islands: each averages with its neighbours in a topology, and none ever knows the mean of all.

This is `plain_unscheduled.gossip` with: rounds of several inner steps, by any optimizer; parts of a model that its
island shares out; messages that have a whole round to arrive; a state that is saved. (Lian et al. 2017,
arXiv:1705.09056, algorithm 1: a gradient is of the weights before they are mixed, so both may happen at once.)

    x  <-  W x + what the round has changed            x: as it was when the round began

What has to travel is known when a round begins, and W x - x is added when it ends. So with one step in a round and SGD
inside this is decentralized SGD, and no step waits for a link that is as fast as a step. In the first round islands are
equal, and nothing is sent. At the end of a run they take their mean.

| in a step                   | a rank sends           | one after another |
|-----------------------------|------------------------|-------------------|
| gossip with k neighbours    | k · Ψ / H              | 1 / H             |
| local SGD of n islands      | 2 (n-1)/n · Ψ / H      | 2 (n-1) / H       |

While it is under way a rank holds what it has sent, and what each neighbour has: (1 + k) Ψ; and Ψ for a checkpoint.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from reference.choices import GossipTopology

from . import topology
from .gossip import Gossip
from .meeting import AfterStep, Meeting, fill, flat
from .streaming import UnderWay
from .wire import Stages, mean

PULL = "pull"  # of neighbours: W x - x
CHOICES: Mapping[GossipTopology, topology.Topology] = MappingProxyType(
    {
        GossipTopology.RING: topology.ring,
        GossipTopology.TORUS: topology.torus,
        GossipTopology.EXPONENTIAL: topology.exponential,
        GossipTopology.ONE_PEER: topology.one_peer,
    }
)


def chosen(choice: GossipTopology, seed: int) -> topology.Topology:
    """The matrices of a choice; random pairs are drawn from the seed of the run."""
    return CHOICES.get(choice) or partial(topology.random_pairs, seed=seed)


class Neighbours(Meeting):
    """All parameters, at the end of each round, with some other islands."""

    def begin(self) -> None:
        self.gossip = Gossip(self.across, chosen(self.meets.topology, self.seed))
        self.kept = {PULL: self.zeros()}
        self.under_way: UnderWay | None = None

    @torch.no_grad()
    def after(self, at: AfterStep) -> bool:
        if not at.ends:
            return False
        now = flat(self.masters)
        if self.under_way:
            now += self.under_way.wait()
            self.under_way = None
        if at.last:
            fill(self.masters, mean(now, self.across))
            return True
        fill(self.masters, now)
        self.under_way = UnderWay(self.pull_in_stages(now), at.taken)
        self.under_way.advance()
        return True

    def pull_in_stages(self, x: Tensor) -> Stages:
        """W x - x, under way."""
        mixed = yield from self.gossip.mix_in_stages(x)
        return mixed - x

    def state_dict(self) -> dict[str, Any]:
        if self.under_way:
            fill(self.kept[PULL], self.under_way.wait())
        super().state_dict()
        sent = self.under_way.sent if self.under_way else None
        return {"sent": sent, "gossip": self.gossip.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.gossip.load_state_dict(state["gossip"])
        if state["sent"] is not None:
            self.under_way = UnderWay(iter(()), state["sent"], mean=flat(self.kept[PULL]))

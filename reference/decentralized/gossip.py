"""Gossip: each rank averages with a few neighbours, and no rank ever knows the mean of all.

This is `plain_unscheduled.gossip` with: a message to each neighbour, of any topology, which also may change from round
to round; and a state that a checkpoint keeps.

Lian et al. 2017 (arXiv:1705.09056) showed that SGD so learns as fast per step as with an all-reduce, once there are
enough steps; and a step costs a message to each neighbour, however many ranks there are. A round with `one_peer` or
`random_pairs` sends a model once: an all-reduce, 2(n-1)/n times, but in 2(n-1) messages one after another.

| per round and rank | messages   | bytes          | one after another |
|--------------------|------------|----------------|-------------------|
| k neighbours       | k          | k · model      | 1                 |
| all-reduce, ring   | 2(n-1)     | 2(n-1)/n model | 2(n-1)            |
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator, Finish
from reference.errors import BadInput

from .topology import Topology, check
from .wire import Stages, at_once


class Gossip:
    """Rounds of averages with neighbours.

    Args:
        communicator: n ranks.
        topology: of n ranks and a round, who takes how much of whom; the same on all ranks.
    """

    def __init__(self, communicator: Communicator, topology: Topology) -> None:
        self.communicator, self.topology, self.rounds = communicator, topology, 0

    def mix(self, x: Tensor) -> None:
        """A round: `x`, contiguous, of one shape and dtype on all ranks, becomes its part of W x, in place.

        Raises:
            BadInput: if the round's matrix does not keep the mean.
        """
        x.copy_(at_once(self.mix_in_stages(x)))

    def mix_in_stages(self, x: Tensor) -> Stages:
        """The same, under way, and `x` is as it was: between stages a caller may do something else, but not to `x`."""
        rank, n = self.communicator.rank(), self.communicator.size()
        matrix = self.topology(n, self.rounds)
        check(matrix)
        self.rounds += 1
        came: dict[int, Tensor] = {}
        finishes: list[Finish] = []
        for distance in range(1, n):  # all in one order: with NCCL calls wait for those before them
            taker, giver = (rank + distance) % n, (rank - distance) % n
            gives, takes = matrix[taker, rank] > 0, matrix[rank, giver] > 0
            if takes:
                came[giver] = torch.empty_like(x)
            if gives and takes:
                finishes.append(self.communicator.start_exchange(x, taker, came[giver], giver))
            elif gives:
                finishes.append(self.communicator.start_send(x, taker))
            elif takes:
                finishes.append(self.communicator.start_receive(came[giver], giver))
        yield from finishes
        mixed = x * float(matrix[rank, rank])
        for giver in sorted(came):
            mixed.add_(came[giver], alpha=float(matrix[rank, giver]))
        return mixed

    def step(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """A step of decentralized SGD, in place.

        Args:
            weights: [N], of this rank.
            gradient: [N], at these weights, of this rank's examples.
            rate: of learning.
        """
        self.mix(weights)
        weights.sub_(gradient, alpha=rate)

    def state_dict(self) -> dict[str, Any]:
        """How many rounds there were: partners follow from it. Weights are each rank's own."""
        return {"rounds": self.rounds, "ranks": self.communicator.size()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next round.

        Raises:
            BadInput: for a state of another number of ranks, each of which has weights of its own.
        """
        if state["ranks"] != self.communicator.size():
            raise BadInput(
                f"{state['ranks']} ranks had weights of their own, and here are {self.communicator.size()}: average "
                "all of them, and begin with the average on each rank"
            )
        self.rounds = state["rounds"]

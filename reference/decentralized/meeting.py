"""What every way to meet is: after an inner step it may change this rank's part of the parameters.

A rank meets those that stand at its place in the other islands. All islands have one plan, so these hold the same parts
of the model, whatever is split inside; nothing is gathered before it is sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import ParameterShard
from reference.islands import Meets

from .aggregation import aggregator_of


@dataclass(frozen=True)
class AfterStep:
    """Where a run is when an inner step has been taken."""

    taken: int  # inner steps so far, since islands have trained by themselves
    ends: bool  # whether a round ends
    last: bool  # whether the run does: afterwards islands shall be equal, but for branches


class Meeting(ABC):
    """Something that islands do together.

    Args:
        parts: what this rank updates. The masters are changed in place.
        optimizer: the inner one, in whose state a checkpoint finds what is kept here for each element.
        across: ranks at this one's place, one in each island.
        meets: how.
        seed: of what islands draw: the same on all of them.
        everyone: all ranks of all islands, those of an island one after another.
        inside: groups of ranks of this island along which they hold different parts.

    Attributes:
        kept: by name, a tensor for each part.
        aggregate: what becomes of islands' changes, for those that ask for one mean of them.
    """

    def __init__(
        self,
        parts: Sequence[ParameterShard],
        optimizer: Optimizer,
        across: Communicator,
        meets: Meets,
        seed: int = 0,
        everyone: Communicator | None = None,
        inside: Sequence[Communicator] = (),
    ) -> None:
        self.parts, self.optimizer, self.across, self.meets, self.seed = parts, optimizer, across, meets, seed
        self.everyone = everyone or across
        self.masters = [part.master for part in parts]
        self.kept: dict[str, list[Tensor]] = {}
        self.aggregate = aggregator_of(meets, parts, across, seed, self.everyone, inside)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Islands are equal, and begin to train by themselves: fill `kept`."""

    def correct(self, scale: float) -> None:  # noqa: B027  # most have nothing to do
        """Add to the gradients of an inner step, which are there, and are clipped together with what is added.

        Args:
            scale: of the loss, and so of the gradients.
        """

    @abstractmethod
    def after(self, at: AfterStep) -> bool:
        """An inner step has been taken. Returns whether masters have been changed."""

    def pause(self) -> None:  # noqa: B027  # most have nothing to do
        """All islands have come to one step, after which they may stop: all call this. No thread is left afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What is kept beside tensors. Those are put where a checkpoint finds them, and can be resharded."""
        for name, tensors in self.kept.items():
            for master, tensor in zip(self.masters, tensors, strict=True):
                if self.optimizer.state[master] or isinstance(self.optimizer, SGD):  # else no step has counted
                    self.optimizer.state[master][name] = tensor
        return self.aggregate.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as another one was, once the optimizer has loaded its state."""
        self.aggregate.load_state_dict(state)
        self.begin()
        for name, tensors in self.kept.items():
            for master, tensor in zip(self.masters, tensors, strict=True):
                if (found := self.optimizer.state[master].get(name)) is not None:
                    tensor.copy_(found)

    def copies(self) -> list[Tensor]:
        """Of the masters as they are."""
        return [master.detach().clone() for master in self.masters]

    def zeros(self) -> list[Tensor]:
        """One for each element."""
        return [torch.zeros_like(master.detach()) for master in self.masters]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in a row: a copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@torch.no_grad()
def fill(tensors: Sequence[Tensor], values: Tensor) -> None:
    """The other way around, in place."""
    for tensor, value in zip(tensors, values.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(value.view_as(tensor))

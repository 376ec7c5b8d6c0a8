"""The weights of a stage in as many versions as are in use: forward computes with one, backward perhaps with another.

Autograd keeps, for backward, the very tensors that forward has used: a stash that it fills by itself, as long as no
update writes over them. What backward shall see, though, is not always what forward has seen. So what autograd would
keep of a weight is replaced by a note, which weight it was; and when backward asks for it, it is given the version that
it shall see. Weights are all that is replaced: activations stay those of forward.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from reference.pipeline_parallel.schedule import Action, Kind, Schedule

from .pipemare import PipeMareOptions, corrected, decay, rescheduled, velocity_after
from .versions import Seen, delay

OptimizerOf = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer, such as `torch.optim.AdamW`."""

Rate = Callable[[int], float]
"""The learning rate of an update, counted from 0."""


class SavedWeight(NamedTuple):
    """What stands for a weight, or a view of it, that autograd would have kept."""

    index: int  # among the parameters of the stage
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Weights:
    """The weights of one stage, and its updates.

    Args:
        stage: whose parameters these are; used as they are, without casts on the way.
        number: of the stage.
        schedule: of a whole run, with whole backwards.
        seen: the version that each action sees.
        batch: micro-batches that make an update.
        optimizer: makes one over the stage's parameters.
        rate: of each update.
        pipemare: what it does against the delay; None for other methods.

    `versions` holds the weights, in the order of `stage.parameters()`, by version.
    """

    def __init__(
        self,
        stage: nn.Module,
        number: int,
        schedule: Schedule,
        seen: Seen,
        batch: int,
        optimizer: OptimizerOf,
        rate: Rate,
        pipemare: PipeMareOptions | None = None,
    ) -> None:
        self.stage, self._seen, self._batch, self._rate, self._pipemare = stage, seen, batch, rate, pipemare
        self._parameters = list(stage.parameters())
        self._optimizer = optimizer(self._parameters)
        self.versions = {0: [parameter.data for parameter in self._parameters]}
        self._newest, self._backwards = 0, 0
        line = [action for action in schedule.lines[schedule.placement[number]] if action.stage == number]
        self._to_see = Counter(seen[action] for action in line)  # how often each version will still be seen
        updates = schedule.micro_batches // batch
        self._delays = [
            delay(seen, Kind.FORWARD, number, t, batch) - delay(seen, Kind.BACKWARD, number, t, batch)
            for t in range(updates)
        ]
        self._velocity = [torch.zeros_like(weight) for weight in self.versions[0]] if pipemare else []

    @contextmanager
    def context(self, action: Action) -> Iterator[None]:
        """Give an action of this stage the weights that it shall see, and update them when a batch has finished."""
        version = self._seen[action]
        if action.kind is Kind.FORWARD:
            self._use(self.versions[version])
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        else:
            self._behind = self.versions[version]
            yield
            self._backwards += 1
        self._to_see[version] -= 1
        if version != self._newest and not self._to_see[version]:
            del self.versions[version]
        if action.kind is Kind.BACKWARD and self._backwards % self._batch == 0:
            self._update()

    def _use(self, weights: list[Tensor]) -> None:
        for parameter, weight in zip(self._parameters, weights, strict=True):
            parameter.data = weight
        self._index = {weight.untyped_storage().data_ptr(): index for index, weight in enumerate(weights)}

    def _pack(self, x: Tensor) -> Tensor | SavedWeight:
        """What autograd keeps instead of x."""
        index = self._index.get(x.untyped_storage().data_ptr())
        return x if index is None else SavedWeight(index, x.size(), x.stride(), x.storage_offset())

    def _unpack(self, kept: Tensor | SavedWeight) -> Tensor:
        """What backward gets for it."""
        if isinstance(kept, Tensor):
            return kept
        weight = self._behind[kept.index]
        if self._pipemare:
            weight = corrected(weight, self._velocity[kept.index], self._delays[self._newest])
        return weight.as_strided(*kept[1:])

    def _update(self) -> None:
        """A version more. It takes the place of the one before, unless that will be seen again."""
        update, before = self._newest, self.versions[self._newest]
        still_seen = self._to_see[update] > 0
        after = [weight.clone() for weight in before] if still_seen or self._pipemare else before
        self._use(after)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate_of(update)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._pipemare:
            gamma = decay(max(self._delays), self._pipemare.remembered)
            changes = zip(self._velocity, before, after, strict=True)
            self._velocity = [velocity_after(*change, gamma) for change in changes]
        if not still_seen:
            del self.versions[update]
        self._newest = update + 1
        self.versions[self._newest] = after

    def _rate_of(self, update: int) -> float:
        rate, tau = self._rate(update), self._delays[update]
        if not self._pipemare or not tau:
            return rate
        first = next(t for t, late in enumerate(self._delays) if late)
        return rescheduled(rate, tau, update - first, self._pipemare.updates)

"""What every form of data parallelism is for those who use it: the loop, the optimizer, the checkpoint.

A form stands between a model and its optimizer. It decides which rank updates what, and when gradients and parameters
travel; a training loop need not know:

    for k, (tokens, targets) in enumerate(micro_batches):
        with form.micro_batch(last=k == len(micro_batches) - 1):
            token_loss(model(tokens), targets, global_tokens).backward()
    form.reduce_gradients()        # masters now have the gradients of the whole batch
    optimizer.step()               # any elementwise optimizer over [part.master for part in form.parts]
    form.end_step()                # the model computes with the updated masters
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parameter import is_lazy

from reference.errors import BadInput
from reference.sharding import Slices, pieces


@dataclass(frozen=True, eq=False)
class ParameterShard:
    """Elements [begin, end) of the flattened parameter `name`, which this rank updates.

    `master` is what the optimizer sees: `end - begin` elements, in the precision of the update. Where a rank updates a
    parameter whole, it may be the parameter itself.

    Where other axes of the mesh split a parameter, this rank computes with a `block` of it, and begin and end count the
    elements of that.
    """

    name: str  # as `named_parameters` of the whole model says it
    shape: torch.Size  # of the whole parameter
    begin: int
    end: int
    master: nn.Parameter
    block: Slices | None = None  # None: the whole parameter. It may stick out at the end, with padding
    is_primary: bool = True  # False where another rank counts the same part in sums over all parameters

    def pieces(self, values: Tensor) -> list[tuple[Slices, Tensor]]:
        """Where in the parameter the elements of `values` are, which are as many as the master's.

        Returns:
            Boxes, and a view of `values` in the form of each; padding is left out.
        """
        return pieces(values.flatten(), self.begin, self.block or Slices.of(self.shape), self.shape)


class GradientSync(Protocol):
    """What a form is for the optimizer and the checkpoint, however backward is run."""

    parts: tuple[ParameterShard, ...]  # what this rank updates
    shard_groups: tuple[ProcessGroup, ...]  # axes along which ranks hold different parts; () where every rank holds all
    units: Sequence[Any]  # what is gathered and freed, see `reference.zero.unit`; () where parameters stay whole
    remembered: Sequence[Any]  # from step to step, beside masters: `Remembered`; () where gradients are sent whole

    def reduce_gradients(self) -> None:
        """Wait. Afterwards each master's `grad` is the gradient of the whole batch: the sum over all ranks."""

    def end_step(self) -> None:
        """Let the model compute with the masters as they are now, and forget the gradients."""

    def gradients(self) -> list[Tensor]:
        """The buffers in which gradients are at this moment, for those that measure memory."""


class DataParallel(GradientSync, Protocol):
    """A form of data parallelism, applied to one model."""

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch. All gradients are in flight at the end of the `last`."""

    def begin_step(self) -> None:
        """Gradients may come before the first micro-batch: a pipeline's do, whose backward is in halves."""


class Progress(Enum):
    """State of a step; the value is the error message for an out-of-order call."""

    BEGUN = "no micro-batch of this step was the last: put micro_batch(last=True) around forward and backward of one"
    INSIDE = "a micro-batch is open, or has failed: end_step() forgets its gradients, then begin the step again"
    SENT = "the last micro-batch of this step is over: call reduce_gradients()"
    COLLECTED = "gradients are collected, and no optimizer can forget them: end_step() ends a step"


EARLY = (
    "gradients came before the first micro-batch of this step, and would be added to it: end_step() forgets them; "
    "freeze what only hands gradients on, or take torch.autograd.grad"
)


class StepOrder:
    """Keeps the calls of a step in order: micro-batches, the last of them last, `reduce_gradients`, `end_step`.

    A backward past the model in between, as that of a generator through its discriminator, leaves gradients that no
    `zero_grad` finds. The first micro-batch refuses to begin with them.

    Raises:
        RuntimeError: for anything else. A step that has failed is ended by `end_step`.
    """

    def __init__(self) -> None:
        self._progress = Progress.BEGUN
        self._gradients_may_be_there = False

    @contextmanager
    def micro_batch(self, last: bool, gradients_are_there: bool) -> Iterator[None]:
        """Around a micro-batch. One that fails stays open."""
        self._require(Progress.BEGUN)
        if gradients_are_there and not self._gradients_may_be_there:
            raise RuntimeError(EARLY)
        self.begin_step()
        self._progress = Progress.INSIDE
        yield
        self._progress = Progress.SENT if last else Progress.BEGUN

    def begin_step(self) -> None:
        """From now on gradients are those of this step."""
        self._gradients_may_be_there = True

    def reduce_gradients(self) -> None:
        """Gradients are about to be collected."""
        self._require(Progress.SENT)
        self._progress = Progress.COLLECTED

    def end_step(self) -> None:
        """Gradients are forgotten, and the next step begins."""
        self._progress, self._gradients_may_be_there = Progress.BEGUN, False

    def _require(self, progress: Progress) -> None:
        if self._progress is not progress:
            raise RuntimeError(self._progress.value)


class NoGradient(RuntimeError):
    """A parameter was used by no micro-batch of a step, and the form was not told that this may happen."""


def require_shapes(model: nn.Module) -> None:
    """Refuse parameters of lazy modules that have not computed yet.

    Raises:
        BadInput: that names the first of them.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise BadInput(f"{name} has no shape yet: run the model once, then wrap it")


def freeze_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Round frozen parameters to the dtype that is computed in; they are not updated, so there are no masters.

    Integers stay as they are.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def trainable(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name. Tied ones have one name; frozen ones need no gradients and no optimizer.

    Raises:
        BadInput: for a complex parameter.
    """
    found = {name: parameter for name, parameter in named if parameter.requires_grad}
    require_real(found)
    return found


def require_real(named: Mapping[str, nn.Parameter]) -> None:
    """Refuse complex parameters: their imaginary part would be lost.

    Raises:
        BadInput: that names the first of them.
    """
    if complex_ones := [name for name, parameter in named.items() if parameter.is_complex()]:
        raise BadInput(f"{complex_ones[0]} is complex: make its real and its imaginary part two parameters")

"""Not a number, on one rank: all ranks leave the step out together, and the rank and the parameter where it began are
named.

If the rank that sees a NaN skips its step, and the others do not, they wait for it in the next message forever, or
replicas drift apart (fairscale#754). So whether a step counts must be the same on all ranks. It takes no message of its
own, because a NaN that is added to anything makes a NaN of it:

| where it is                                     | what brings it to the others, and is sent anyway      |
|-------------------------------------------------|-------------------------------------------------------|
| a gradient, before it is summed                 | the sum of gradients                                  |
| a part that other ranks have not (ZeRO, FSDP,   | the sum of squares for the norm of all gradients      |
| blocks of matrices, stages)                     |                                                       |
| one replica's gradient, after it was summed     | the sum of losses: one more number in its message     |

The first two are in the norm that a step has anyway: `SkipTogether` looks at it, and stands where
`reference.updates.EveryStep` does. The third takes the loss as well, before the update: `take_step`.

A scaled loss (`reference.memory.loss_scaling`) overflows now and then, and that is meant: such a step is left out by
its scaler, halves the scale, and is not counted here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.errors import BadInput
from reference.memory.loss_scaling import NoScaler
from reference.updates import EveryStep

if TYPE_CHECKING:
    from reference.train import Training


class NotFinite(FloatingPointError):
    """Too many steps in a row were not finite. Every rank raises it in the same step."""


class SkipTogether(EveryStep):
    """As `EveryStep`, but a step whose gradients are infinite or NaN anywhere is left out, on all ranks.

        training.updates = SkipTogether(training)

    Args:
        training: whose gradients are updated with.
        most: so many steps in a row may be left out.

    Raises:
        BadInput: where none may be left out and none be taken, with `most` below 0.
        NotFinite: by `step`, for one more.
    """

    def __init__(self, training: "Training", most: int = 3) -> None:
        super().__init__(training.config, training.form, training.optimizer, training.scaler, training.device)
        if most < 0:
            raise BadInput(f"at most {most} steps in a row are to be left out: take 0 to stop at the first")
        self.most, self.in_a_row, self.skipped = most, 0, []  # skipped: the steps

    def step(self, step: int) -> float:
        """Update the parameters, or leave the step out. Returns the norm of all gradients."""
        norm, finite = self.measure()
        self.finish(step, norm, finite and math.isfinite(norm))
        return float(norm)

    def finish(self, step: int, norm: Tensor, counts: bool) -> None:
        """As for `EveryStep`. A step that does not count changes nothing: neither weights nor moments."""
        is_scalers = not (counts or isinstance(self.scaler, NoScaler))
        super().finish(step, norm, counts)
        if is_scalers:
            return
        self.in_a_row = 0 if counts else self.in_a_row + 1
        if not counts:
            self.skipped.append(step)
        if self.in_a_row > self.most:
            raise NotFinite(f"gradients are infinite or NaN in {self.in_a_row} steps in a row, up to step {step}")


@dataclass(frozen=True)
class Taken:
    """A step that was taken or left out: the same on every rank."""

    loss: float  # nats per token
    norm: float  # of all gradients, before clipping
    counts: bool  # whether it was taken


def take_step(training: "Training", step: int, batch: int | None = None) -> Taken:
    """A step of `reference.train`, with one more number in the message that sums losses: 16 bytes instead of 8.

    The sum of losses comes before the update, and tells each rank whether any replica's gradient is not finite.

    Args:
        training: with `updates` that are `SkipTogether`.
        step: counted from 0.
        batch: the number of the batch to read; that of the step by default.
    """
    loss = training.backward(step if batch is None else batch)
    norm, finite = training.updates.measure()
    counts = finite and bool(norm.isfinite())
    said = torch.tensor([float(loss), float(not counts)], dtype=torch.float64, device=training.device)
    dist.all_reduce(said, group=training.loss_group)
    counts = said[1].item() == 0
    training.updates.finish(step, norm, counts)
    training.end_step()
    return Taken(said[0].item(), float(norm), counts)


@dataclass(frozen=True)
class Origin:
    """Where a value that is not finite first appeared on a rank.

    Attributes:
        kind: "output" of a module all of whose inputs were finite, or "gradient" of a parameter.
        name: of the module or of the parameter.
        rank: of the training's group.
    """

    kind: str
    name: str
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank}: the {self.kind} of {self.name} is the first that is not finite"


class FirstNotFinite:
    """Watches what a rank computes, and remembers what was the first to be infinite or NaN in a step.

        watch = FirstNotFinite(training)
        taken = take_step(training, step)
        if not taken.counts: print(*watch.named())      all ranks
        watch.begin()

    It looks at each output of a module that has parameters, and at each gradient before it is summed: one pass over
    each, and no message.

    Args:
        training: whose model is watched.
    """

    def __init__(self, training: "Training") -> None:
        self.group, self.first = training.group, None
        for name, module in training.model.named_modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(partial(self._output, name))
        for name, parameter in training.parameters.items():
            if parameter.requires_grad:
                parameter.register_hook(partial(self._gradient, name))

    def begin(self) -> None:
        """Forget it: a step begins."""
        self.first = None

    def named(self) -> tuple[Origin, ...]:
        """Where it began, the same on every rank; all ranks call this. () where all was finite.

        Outputs come before gradients: of ranks that share the work on a batch, those that computed it have the output,
        and others what came of it.
        """
        told: list[Origin | None] = [None] * self.group.size()
        dist.all_gather_object(told, self.first, group=self.group)
        found = [each for each in told if each is not None]
        return tuple([each for each in found if each.kind == "output"] or found)

    def _output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.first is None and not _finite(output) and _finite(inputs):
            self.first = Origin("output", name, self.group.rank())

    def _gradient(self, name: str, gradient: Tensor) -> None:
        if self.first is None and not _finite(gradient):
            self.first = Origin("gradient", name, self.group.rank())


def _finite(values: Any) -> bool:
    """Whether all numbers in tensors, also those in tuples and dicts, are finite."""
    if isinstance(values, Tensor):
        return not values.is_floating_point() or bool(values.detach().isfinite().all())
    if isinstance(values, Mapping):
        return all(map(_finite, values.values()))
    return all(map(_finite, values)) if isinstance(values, tuple | list) else True

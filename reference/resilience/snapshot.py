"""What a rank must remember to take its steps again: masters, what the optimizer knows of each, the scale of the loss.

The parameters that a model computes with follow from the masters (`form.end_step`), a batch from the step. So that is
all. In ZeRO and FSDP each rank has that of its shards.

Two others copy state, each for another reader: `async_save.Copy` has the share that this rank writes, in memory that
serves again; `copies.Snapshot` has boxes by name, of which any other layout can be made. This one goes back to where it
was taken, without a message, and on its device. One copy for all three would send, or fill the CPU's memory, where
neither is needed, and a rank of DDP could not go back with the share that it writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reference.data_parallel.gradient_sync import ParameterShard
from reference.zero.checkpoint_state import saved_parts

if TYPE_CHECKING:
    from reference.train import Training

Values = dict[str, Any]
"""Of one part: its master, and what the optimizer has for it, by name: tensors and numbers."""

MASTER = "master"


@dataclass(frozen=True)
class TrainingSnapshot:
    """A copy of all that changes in training.

    Attributes:
        parts: of each part of this rank.
        stateful: of the scaler, and of what else a checkpoint keeps by name.
        remembered: what the form has not sent of gradients.
    """

    parts: tuple[Values, ...]
    stateful: dict[str, Any]
    remembered: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, training: "Training") -> "TrainingSnapshot":
        """Copy it, between two steps."""
        stateful = {name: piece.state_dict() for name, piece in training.stateful.items()}
        parts = tuple(copied(training, part) for part in saved_parts(training.form, training.optimizer))
        remembered = tuple(each.values.clone() for each in training.form.remembered)
        return cls(parts, stateful, remembered)

    def restore(self, training: "Training") -> None:
        """Let a training be again as it was, between two steps. All ranks call it."""
        for part, values in zip(saved_parts(training.form, training.optimizer), self.parts, strict=True):
            install(training, part, values)
        for name, piece in training.stateful.items():
            piece.load_state_dict(self.stateful[name])
        for each, values in zip(training.form.remembered, self.remembered, strict=True):
            each.values.copy_(values)
        training.form.end_step()


@torch.no_grad()
def copied(training: "Training", part: ParameterShard) -> Values:
    """A copy of what a part is, and of what the optimizer has for it."""
    held = training.optimizer.state.get(part.master, {})
    values = {MASTER: part.master.detach(), **held}
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in values.items()}


@torch.no_grad()
def install(training: "Training", part: ParameterShard, values: Values) -> None:
    """Give a part these values; they are copied. What the optimizer had for it before is forgotten."""
    part.master.copy_(values[MASTER])
    kept = {name: value for name, value in values.items() if name != MASTER}
    training.optimizer.state.pop(part.master, None)
    if kept:
        training.optimizer.state[part.master] = {
            name: value.clone() if isinstance(value, Tensor) else value for name, value in kept.items()
        }


def nbytes(parts: Iterable[Values]) -> int:
    """Bytes of all tensors."""
    return sum(value.nbytes for values in parts for value in values.values() if isinstance(value, Tensor))

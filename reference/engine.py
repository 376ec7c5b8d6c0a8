"""A step of training on one rank: micro-batches go forward and backward, and their gradients add up.

Two engines do it, and a training loop need not know which it has: a `Pipeline`
(`reference.pipeline_parallel.run`), whose micro-batches pass through several ranks, and `OneStage`, with all layers on
this rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from reference.context_parallel.layouts import Layout
from reference.data_parallel.gradient_sync import DataParallel
from reference.models.objective import IGNORED

Inputs = Callable[[int], tuple[Any, ...]]
"""What the model is called with in micro-batch k, such as `Batch.inputs`."""
Loss = Callable[[Tensor, int], Tensor]
"""Of what the model makes of micro-batch k: a scalar."""


@dataclass(frozen=True)
class Batch:
    """What a rank reads in one micro-batch.

    Attributes:
        tokens, targets: [B, S], int64.
        positions: [S], where the tokens stand in their windows; below 0 for padding, which is none.
        dropout_seeds: [B, S], int64, from which dropout follows; None where there is none.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    dropout_seeds: Tensor | None = None

    @classmethod
    def of(cls, tokens: Tensor, targets: Tensor, dropout_seeds: Tensor | None = None) -> "Batch":
        """Of whole windows."""
        return cls(tokens, targets, torch.arange(tokens.shape[1], device=tokens.device), dropout_seeds)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a model is called with."""
        return self.tokens, self.positions, self.dropout_seeds

    def of_rank(self, layout: Layout, rank: int) -> "Batch":
        """What one rank of a layout holds of each window; its tokens know where they stand. Padding does not count."""

        def held(x: Tensor | None, padding: int = 0) -> Tensor | None:
            return None if x is None else layout.cut(x, rank, dim=-1, padding=padding)

        return Batch(held(self.tokens), held(self.targets, IGNORED), held(self.positions, -1), held(self.dropout_seeds))


class Engine(Protocol):
    """What takes micro-batches forward and backward."""

    needs_warm_up: bool  # whether kernels must be loaded before messages are in flight, see `reference.on_gpus`

    def step(self, inputs: Inputs, loss: Loss) -> Tensor | None:
        """Forward and backward of all micro-batches. Returns the sum of losses, on ranks that have any."""


class OneStage:
    """All layers on this rank: its micro-batches, one after the other.

    Args:
        model: called with what `inputs` says.
        form: of data parallelism, over the model.
        micro_batches: in a step.
    """

    needs_warm_up = False

    def __init__(self, model: nn.Module, form: DataParallel, micro_batches: int) -> None:
        self._model, self._form, self._micro_batches = model, form, micro_batches

    def step(self, inputs: Inputs, loss: Loss) -> Tensor:
        """Forward and backward of all micro-batches. Returns the sum of their losses."""
        losses = []
        for k in range(self._micro_batches):
            with self._form.micro_batch(last=k == self._micro_batches - 1):
                part = loss(self._model(*inputs(k)), k)
                part.backward()
            losses.append(part.detach())
        return torch.stack(losses).sum()


class ForwardOnly:
    """One micro-batch forward, where all layers are on this rank."""

    needs_warm_up = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def step(self, inputs: Inputs, loss: Loss) -> Tensor:
        """The loss of micro-batch 0."""
        return loss(self._model(*inputs(0)), 0)

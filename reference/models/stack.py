"""What a strategy may ask of a model: its sizes, its list of blocks, and what begins and ends them.

| who asks                    | what                                                                       |
|-----------------------------|----------------------------------------------------------------------------|
| a plan, tensor parallelism  | the sizes and the layout of a `ModelConfig`                                |
| a pipeline                  | a `Stack`: blocks, each from one tensor to one, which are cut into stages  |
| recomputation, and all else | the ops of its layers: `reference.models.ops`                              |
| training                    | what the model is to predict: `reference.models.objective`                 |

A model of this kind is one file: a configuration, and a `Stack`.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from .layout import Layout
from .objective import Objective
from .ops import Layer


class ModelConfig(Protocol):
    """The sizes of a model: what can be known of it without building it."""

    layout: ClassVar[Layout]  # how its parameters may be split
    objective: ClassVar[Objective]  # what it is to predict

    layers: int  # blocks
    width: int  # of the residual stream
    heads: int
    hidden: int  # features inside the feed-forward
    vocabulary: int
    tied: bool  # whether the head uses the table of the first layer, `embedding`
    dropout: float
    experts: int  # of a layer that has several feed-forwards, from which each token chooses; 0 where none has
    longest: int | None  # tokens in a window, at most; None for any number

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; each serves some of queries."""

    @property
    def block_parameters(self) -> int:
        """How many numbers a block learns."""

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""


class Stack(Layer):
    """A model that is a list of blocks, with layers before and after them; or some of the blocks, with what is there.

    A model says what its layers do: `begin`, `given`, `end`. Which layers those at the ends are, it says by name.

    Args:
        config: of the model.
    """

    first: ClassVar[tuple[str, ...]]  # layers that `begin` uses
    last: ClassVar[tuple[str, ...]]  # layers that `end` uses

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.begins = self.ends = True  # whether it has the first layers, and the last ones

    def begin(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What the first block is given: [B, S] of integers and [S] -> [B, S, D]."""
        raise NotImplementedError

    def given(self, positions: Tensor) -> tuple[Tensor, ...]:
        """What every block is given besides, but for the seeds of dropout."""
        raise NotImplementedError

    def end(self, x: Tensor) -> Tensor:
        """Logits of what the last block has made: [B, S, D] -> [B, S, V]."""
        raise NotImplementedError

    def forward(self, x: Tensor, positions: Tensor | None = None, dropout_seeds: Tensor | None = None) -> Tensor:
        """[B, S] of integers -> logits [B, S, V]; some of the blocks alone: [B, S, D] -> [B, S, D].

        Args:
            x: tokens, each in [0, V); what the block before has made, where that is elsewhere.
            positions: [S], where the tokens stand in the text; from 0 on by default.
            dropout_seeds: [B, S] of int64, from which dropout follows; without it none is done (`models.dropout`).
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        given = self.given(positions)
        if dropout_seeds is not None:
            given = (*given, dropout_seeds)  # tensors alone: recomputation saves them
        x = self.begin(x, positions) if self.begins else x
        for block in self.blocks:
            x = block(x, *given)
        return self.end(x) if self.ends else x

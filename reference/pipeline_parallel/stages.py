"""Some of the layers of a GPT, with the names and the values that they have in the whole."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models import GPTConfig, create
from reference.models.gpt import Block, RMSNorm, TiedHead, rotary_cos_sin
from reference.models.ops import Embedding, Head

from .balance import balanced
from .schedule import Schedule


class TiedTable(nn.Module):
    """The embedding of a tied model, which its first and its last stage use. It belongs to neither."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.vocabulary, config.width)


class Borrowed:
    """A module that a stage uses and does not own: `nn.Module` does not find its parameters."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the module makes of them."""
        return self._module(*inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Stage(nn.Module):
    """Blocks of a GPT, in front of the first the embedding, behind the last norm and head.

    Parameters are called as in the whole model, so initial values, layouts and checkpoints are those of the whole.

    Args:
        config: of the whole model.
        blocks: which of its blocks.
        table: of a tied model, for its first and last stage: used here, and nobody's parameter but its own.
    """

    def __init__(self, config: GPTConfig, blocks: range, table: TiedTable | None = None) -> None:
        super().__init__()
        self.config, self.first, self.last = config, blocks.start == 0, blocks.stop == config.layers
        self.embedding = self.norm = self.head = None
        if config.tied and (self.first or self.last):
            self.embedding = Borrowed(table.embedding)
        elif self.first:
            self.embedding = Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList()
        for layer in blocks:
            self.blocks.add_module(str(layer), Block(config, layer))
        if self.last:
            self.norm = RMSNorm(config.width, config.norm_epsilon)
            if config.tied:
                self.head = TiedHead(Borrowed(table.embedding))
            else:
                self.head = Head(config.width, config.vocabulary)

    def forward(self, x: Tensor, positions: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        """Go through the layers.

        Args:
            x: tokens [B, S] of integers for the first stage, else what the stage before has made, [B, S, D]; a slice of
                that, [B, S / t, D], where a sequence-parallel region is behind it.
            positions: [S], where the tokens stand in the text; from 0 on by default.
            noise: [B, S] of int64, from which dropout follows; without it none is done.

        Returns:
            [B, S, D]; logits [B, S, V] of the last stage.
        """
        config = self.config
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        cos_sin = rotary_cos_sin(positions, config.head_dim, config.rotary_base)
        given = (cos_sin,) if noise is None else (cos_sin, noise)
        x = self.embedding(x) if self.first else x
        for block in self.blocks:
            x = block(x, *given)
        return self.head(self.norm(x)) if self.last else x


class Stages(nn.Module):
    """The stages of one rank, as one model: its parameters are called as in the whole model, too.

    Args:
        stages: by number.
        table: that they use, if they do.
    """

    def __init__(self, stages: Mapping[int, Stage], table: TiedTable | None = None) -> None:
        super().__init__()
        self.by_number, self.table = dict(stages), table
        for number, stage in stages.items():
            self.add_module(str(number), stage)

    @property
    def config(self) -> GPTConfig:
        """Of the whole model."""
        return next(iter(self.by_number.values())).config

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As the whole model names them."""
        for part in (self.table, *self.by_number.values()):
            if part is not None:
                yield from part.named_parameters(prefix, recurse, remove_duplicate)


def pieces_of(config: GPTConfig, stages: int) -> list[range]:
    """The blocks of each stage, such that the most expensive stage costs the least.

    A token costs as many multiplications as a matrix has numbers. The head is behind the last block, and a tied one
    multiplies, too; the embedding only looks up.

    Args:
        config: of the whole model.
        stages: at most as many as there are blocks.

    Raises:
        BadInput: if there are fewer blocks than stages.
    """
    block, head = config.block_parameters, config.vocabulary * config.width
    return balanced([block] * (config.layers - 1) + [block + head], stages)


def stages_of(
    config: GPTConfig,
    schedule: Schedule,
    rank: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[int, Stage]:
    """The stages of one rank, by number, with the values that they have in the whole model.

    Args:
        config: of the whole model, whose head is its own.
        schedule: says which stages the rank has. DualPipe has each part of the model twice: stages s and p + s.
        rank: among those of the pipeline.
        seed, device, dtype: as for `create`.

    Raises:
        BadInput: if there are fewer blocks than stages, or the table is tied.
    """
    if config.tied:
        raise BadInput("a tied table belongs to two stages: take a model whose head is its own, or `parallelize`")
    pieces, own = pieces_of(config, len(schedule.routes[0])), schedule.stages_on(rank)
    return {s: create(partial(Stage, blocks=pieces[s % len(pieces)]), config, seed, device, dtype) for s in own}

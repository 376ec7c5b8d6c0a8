"""Some of the layers of a model, with the names and the values that they have in the whole."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import nn

from reference.errors import BadInput
from reference.models import ModelConfig, Stack, architecture, create
from reference.models.borrowed import Borrowed, lend
from reference.models.ops import Embedding

from .balance import balanced
from .schedule import Schedule


class TiedTable(nn.Module):
    """The embedding of a tied model, which its first and its last stage use. It belongs to neither."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.vocabulary, config.width)


def stage_of(config: ModelConfig, blocks: range, table: TiedTable | None = None) -> Stack:
    """Some of the blocks of a model; the first of them has the layers before it, and the last those after it.

    Parameters are called as in the whole model, so initial values, layouts and checkpoints are those of the whole.

    Args:
        config: of the whole model.
        blocks: which of its blocks.
        table: of a tied model, for its first and last stage: used here, and a parameter of no module but itself.
    """
    stage, kept = architecture(config), nn.ModuleList()
    stage.begins, stage.ends = blocks.start == 0, blocks.stop == config.layers
    if config.tied and (stage.begins or stage.ends):
        lend(stage, stage.embedding, Borrowed(table.embedding))
    elsewhere = (() if stage.begins else stage.first) + (() if stage.ends else stage.last)
    for name in elsewhere:
        setattr(stage, name, None)
    for layer in blocks:
        kept.add_module(str(layer), stage.blocks[layer])
    stage.blocks = kept
    return stage


class Stages(nn.Module):
    """The stages of one rank, as one model: its parameters are called as in the whole model, too.

    Args:
        stages: by number.
        table: that they use, if they do.
    """

    def __init__(self, stages: Mapping[int, Stack], table: TiedTable | None = None) -> None:
        super().__init__()
        self.by_number, self.table = dict(stages), table
        for number, stage in stages.items():
            self.add_module(str(number), stage)

    @property
    def config(self) -> ModelConfig:
        """Of the whole model."""
        return next(iter(self.by_number.values())).config

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As the whole model names them."""
        for part in (self.table, *self.by_number.values()):
            if part is not None:
                yield from part.named_parameters(prefix, recurse, remove_duplicate)


def pieces_of(config: ModelConfig, stages: int) -> list[range]:
    """The blocks of each stage, such that the most expensive stage costs the least.

    A token costs as many multiplications as a matrix has numbers. The head comes after the last block, and a tied one
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
    config: ModelConfig,
    schedule: Schedule,
    rank: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[int, Stack]:
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
    return {s: create(partial(stage_of, blocks=pieces[s % len(pieces)]), config, seed, device, dtype) for s in own}

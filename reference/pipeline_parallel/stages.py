"""Some of the layers of a GPT, with the names and the values that they have in the whole."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models import GPTConfig
from reference.models.gpt import Block, RMSNorm, TiedHead, rotary_waves


class Stage(nn.Module):
    """Blocks of a GPT, in front of the first the embedding, behind the last norm and head.

    Parameters are called as in the whole model, so initial values, layouts and checkpoints are those of the whole. A
    tied head needs the embedding's table: the last stage has a copy of it.

    Args:
        config: of the whole model.
        blocks: which of its blocks.
    """

    def __init__(self, config: GPTConfig, blocks: range) -> None:
        super().__init__()
        self.config, self.first, self.last = config, blocks.start == 0, blocks.stop == config.layers
        self.embedding = self.norm = self.head = None
        if self.first or (self.last and config.tied):
            self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList()
        for layer in blocks:
            self.blocks.add_module(str(layer), Block(config, layer))
        if self.last:
            self.norm = RMSNorm(config.width, config.norm_epsilon)
            self.head = (
                TiedHead(self.embedding) if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
            )

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
        waves = rotary_waves(positions, config.head_dim, config.rotary_base)
        given = (waves,) if noise is None else (waves, noise)
        x = self.embedding(x) if self.first else x
        for block in self.blocks:
            x = block(x, *given)
        return self.head(self.norm(x)) if self.last else x


class Stages(nn.Module):
    """The stages of one rank, as one model: its parameters are called as in the whole model, too.

    First and last stage, where one rank has both, share the table of a tied model.

    Args:
        stages: by number.
    """

    def __init__(self, stages: Mapping[int, Stage]) -> None:
        super().__init__()
        self.by_number = dict(stages)
        for number, stage in stages.items():
            self.add_module(str(number), stage)
        tables = [stage for stage in stages.values() if stage.embedding is not None and stage.config.tied]
        for stage in tables[1:]:
            stage.embedding = tables[0].embedding
            if stage.last:
                stage.head = TiedHead(stage.embedding)

    @property
    def config(self) -> GPTConfig:
        """Of the whole model."""
        return next(iter(self.by_number.values())).config

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As the whole model names them."""
        seen: set[nn.Parameter] = set()
        for stage in self.by_number.values():
            for name, parameter in stage.named_parameters(prefix, recurse, remove_duplicate):
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter


def balanced(costs: Sequence[float], stages: int) -> list[range]:
    """Cut layers into stages so that the dearest stage is as cheap as can be.

    Args:
        costs: of each layer, in order; none is negative.
        stages: how many; each gets a layer or more.

    Raises:
        BadInput: if there are fewer layers than stages.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise BadInput(f"{layers} layers make 1 to {layers} stages, not {stages}")
    sums = [sum(costs[:layer]) for layer in range(layers + 1)]
    dearest = {(layer, 1): (sums[layer], 0) for layer in range(1, layers + 1)}
    for stage in range(2, stages + 1):
        for layer in range(stage, layers + 1):
            dearest[layer, stage] = min(
                (max(dearest[cut, stage - 1][0], sums[layer] - sums[cut]), cut) for cut in range(stage - 1, layer)
            )
    cuts = [layers]
    for stage in range(stages, 0, -1):
        cuts.append(dearest[cuts[-1], stage][1])
    return [range(begin, end) for begin, end in zip(cuts[:0:-1], cuts[-2::-1], strict=True)]

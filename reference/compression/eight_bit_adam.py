"""AdamW whose moments have 8 bits: 2 bytes for each parameter instead of 8.

This is `plain_low_bits.eight_bit_adamw` under any plan: a block of neighbours has one scale wherever its elements are,
which ranks find that each have a part of it, and no others (`shared_blocks`). Weights are updated by the moments before
these are rounded, and a moment in full is there for one parameter at a time: where blocks are
cut, moments are made twice, once to find scales, all of which travel in one message, and once to be used.

Of the second moment the root is kept, whose numbers reach half as far in powers of two: v of a gradient that is a
thousandth of the largest in its block would be rounded to zero. It has numbers of its own (`ROOTS`), for it falls by
little in a step, and to the nearest of coarser ones it would never fall.

A checkpoint holds moments, not codes. Scales are powers of two, and what is rounded again in other blocks, or parts of
blocks, stays what it is: so a run continues as if nothing had happened, on any layout.

Dettmers et al. 2022, "8-bit optimizers via block-wise quantization" (2110.02861), whose codes are others.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reference.collectives.communicator import Communicator
from reference.compression.by_chance import ByChanceAdamW
from reference.compression.plain_low_bits import FP8, ROOTS, codes, decoded, scale_of
from reference.compression.shared_blocks import SharedBlocks
from reference.data_parallel.gradient_sync import ParameterShard
from reference.dtypes import accumulator

MOMENTS = {"exp_avg": FP8, "root_exp_avg_sq": ROOTS}


@dataclass
class PackedMoments:
    """What is kept of a part with so many elements in so many blocks."""

    step: int
    codes: Tensor  # bytes, [2, elements]
    scales: Tensor  # [blocks, 2]


class EightBitAdamW(ByChanceAdamW):
    """AdamW with moments in 8 bits; weights in bf16 are rounded by chance.

    Args:
        parts, options, seed: as for `ByChanceAdamW`.
        communicator: of all ranks of the plan. All of them make one together, and take steps together; None for one
            process.
    """

    def __init__(
        self,
        parts: Sequence[ParameterShard],
        options: Mapping[str, Any],
        seed: int = 0,
        communicator: Communicator | None = None,
    ) -> None:
        self.kept: dict[nn.Parameter, PackedMoments] = {}
        super().__init__(parts, options, seed)
        self.blocks = SharedBlocks(self.parts, communicator)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update each parameter that has a gradient. All ranks call this together."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        agreed = None
        if self.blocks.are_cut:
            agreed = self.blocks.agree([self.largest(part, *self.moments(part)) for part in self.parts])
        for index, part in enumerate(self.parts):
            if part.master.grad is not None:
                m, v = self.moments(part)
                largest = self.largest(part, m, v) if agreed is None else agreed[index]
                step = 1 + (self.kept[part.master].step if part.master in self.kept else 0)
                self.update(part, m, v, step)
                self.keep(part.master, step, (m, v.sqrt_()), largest)
        return loss

    def largest(self, part: ParameterShard, m: Tensor, v: Tensor) -> Tensor:
        """Of both that are kept, in each block of a part: [blocks, 2]."""
        return self.blocks.largest(self.of[part.master], m, v.sqrt())

    def moments(self, part: ParameterShard) -> tuple[Tensor, Tensor]:
        """As for `ByChanceAdamW`; these are copies."""
        m, root = self.recall(part.master)
        if part.master.grad is None:
            return m, root.square_()
        b1, b2 = self.param_groups[0]["betas"]
        gradient = part.master.grad.to(m.dtype)
        return m.lerp_(gradient, 1 - b1), root.square_().mul_(b2).add_(gradient.square().mul_(1 - b2))

    def recall(self, master: nn.Parameter) -> tuple[Tensor, Tensor]:
        """The first moment and the root of the second, of the form of their master; zeros before the first step."""
        if master not in self.kept:
            zeros = torch.zeros_like(master, dtype=accumulator(master.dtype))
            return zeros, zeros.clone()
        kept, numbers = self.kept[master], self.blocks.numbers(self.of[master])
        first, root = (
            decoded(x.view(kind.dtype), kept.scales[numbers, k], kind).view(master.shape)
            for k, (x, kind) in enumerate(zip(kept.codes, MOMENTS.values(), strict=True))
        )
        return first, root

    def keep(self, master: nn.Parameter, step: int, moments: Sequence[Tensor], largest: Tensor) -> None:
        """Round both, with a scale for each block, of the largest in it: [blocks, 2]."""
        numbers, kinds = self.blocks.numbers(self.of[master]), MOMENTS.values()
        scales = torch.stack([scale_of(of_one, kind) for of_one, kind in zip(largest.T, kinds, strict=True)], 1)
        few = [
            codes(x.flatten(), scales[numbers, k], kind) for k, (x, kind) in enumerate(zip(moments, kinds, strict=True))
        ]
        self.kept[master] = PackedMoments(step, torch.stack([x.view(torch.uint8) for x in few]), scales)

    @property
    def state(self) -> "Unpacked":
        """By master: step, and moments in full, made when they are asked for, packed when they are set."""
        return Unpacked(self)

    @state.setter
    def state(self, value: Mapping) -> None:
        """torch sets an empty one, before there is any."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the moments of one of this class, whose parameters are the same."""
        super().load_state_dict(state_dict | {"state": {}})
        self.kept.clear()
        for number, values in state_dict["state"].items():
            self.state[list(self.of)[number]] = values


class Unpacked(MutableMapping[nn.Parameter, Any]):
    """What an optimizer keeps, as an optimizer in full keeps it."""

    def __init__(self, optimizer: EightBitAdamW) -> None:
        self._optimizer = optimizer

    def __getitem__(self, master: nn.Parameter) -> dict[str, Any]:
        optimizer = self._optimizer
        moments = dict(zip(MOMENTS, optimizer.recall(master), strict=True))
        return {"step": optimizer.kept[master].step, **moments}

    def __setitem__(self, master: nn.Parameter, values: Mapping[str, Any]) -> None:
        optimizer, wide = self._optimizer, accumulator(master.dtype)
        moments = [values[name].to(master.device, wide).view(master.shape) for name in MOMENTS]
        largest = optimizer.blocks.largest(optimizer.of[master], *moments)
        optimizer.keep(master, int(values["step"]), moments, largest)

    def __delitem__(self, master: nn.Parameter) -> None:
        del self._optimizer.kept[master]

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._optimizer.kept)

    def __len__(self) -> int:
        return len(self._optimizer.kept)

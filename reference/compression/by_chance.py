"""AdamW over weights that have 16 bits and no other copy: what is updated is rounded by chance.

An update is a thousandth of its weight, and bf16 keeps 8 bits: to the nearest, most updates would be lost. Rounded up
as often as they are far on the way up, none is lost on average, and the copy in float32 is saved.

This is `plain_low_bits.stochastic_bf16` with: AdamW, and chance that knows no layout. A number is not drawn from a
stream, in which other ranks would be elsewhere; it is computed from run, step, parameter, and the place of the element
in that, as `reference.models.dropout` does. So any layout rounds as one process does, replicas stay equal without a
message, and a checkpoint has no random state.

Gupta et al. 2015, "Deep learning with limited numerical precision" (1502.02551); Zamirai et al. 2020, "Revisiting
BFloat16 training" (2010.06192). Numbers that are not drawn: `reference.models.dropout`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.compression.plain_low_bits import carried
from reference.compression.shared_blocks import places_of
from reference.data_parallel.gradient_sync import ParameterShard
from reference.dtypes import accumulator
from reference.models.dropout import number, token_seeds


def noise_of(seed: int, step: int, name: str, places: Tensor) -> Tensor:
    """16 bits for each element of a parameter in a step: int32 from 0 to below 2^16.

    Args:
        seed: of the run.
        step: any count that grows.
        name: of the parameter.
        places: of its elements, int64.
    """
    stream = token_seeds(seed, step, torch.tensor(crc32(name.encode())))
    return number(stream.to(places.device), places).bitwise_and_(0xFFFF).int()


class ByChanceAdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019) over parts of parameters, whatever their dtype; bf16 is rounded by chance.

    Moments have at least 32 bits.

    Args:
        parts: to update.
        options: `lr`, `betas`, `weight_decay`, and `eps`, of AdamW.
        seed: of chance.
    """

    def __init__(self, parts: Sequence[ParameterShard], options: Mapping[str, Any], seed: int = 0) -> None:
        self.parts, self.seed = [part for part in parts if part.begin < part.end], seed
        self.of = {part.master: index for index, part in enumerate(self.parts)}
        defaults = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, **options}
        super().__init__(list(self.of) or [nn.Parameter(torch.empty(0))], defaults)

    def make(self, parameter: nn.Parameter) -> "ByChanceAdamW":
        """One that keeps of a parameter what this one keeps."""
        part = ParameterShard("", parameter.shape, 0, parameter.numel(), parameter)
        return type(self)([part], self.defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update each parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            if part.master.grad is not None:
                m, v = self.moments(part)
                state = self.state[part.master]
                state["step"] += 1
                self.update(part, m, v, state["step"])
        return loss

    def moments(self, part: ParameterShard) -> tuple[Tensor, Tensor]:
        """Both of a part, with the gradient of this step."""
        state = self.state[part.master]
        if not state:
            zeros = torch.zeros_like(part.master, dtype=accumulator(part.master.dtype))
            state.update(step=0, exp_avg=zeros, exp_avg_sq=zeros.clone())
        b1, b2 = self.param_groups[0]["betas"]
        gradient = part.master.grad.to(state["exp_avg"].dtype)
        return state["exp_avg"].lerp_(gradient, 1 - b1), state["exp_avg_sq"].lerp_(gradient.square(), 1 - b2)

    def update(self, part: ParameterShard, m: Tensor, v: Tensor, step: int) -> None:
        """The weights of a part, by its moments in a step, counted from 1."""
        (group,) = self.param_groups
        (b1, b2), rate = group["betas"], group["lr"]
        weight = part.master.to(m.dtype) * (1 - rate * group["weight_decay"])
        root = (v / (1 - b2**step)).sqrt_().add_(group["eps"])
        weight.addcdiv_(m / (1 - b1**step), root, value=-rate)
        if part.master.dtype is torch.bfloat16:
            noise = noise_of(self.seed, step, part.name, places_of(part).to(weight.device))
            weight = carried(weight, noise.view(weight.shape))
        part.master.copy_(weight)

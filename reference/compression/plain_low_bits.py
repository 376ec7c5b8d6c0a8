"""Numbers of 8 bits with a scale, in one process: linear layers, delayed scales, an optimizer's state, rounding.

A number x is kept as a code, the 8-bit number next to x / scale. The scale is the smallest power of two with which the
largest of those that share it does not overflow: to divide by it rounds nothing, and code times scale is exact in 16
bits. Of a linear layer y = x Wᵀ two products are of codes, and the third is not:

    y = x̂ Ŵᵀ          x̂: each token has a scale, Ŵ: the matrix has one
    dx = dŷ Ŵ          dŷ: each token has a scale
    dW = dyᵀ x         in full: it adds up errors over all tokens, and over steps (Wortsman et al. 2023)

A token's scale depends on no other token. So who else is in the batch, or on which rank, changes nothing.

Micikevicius et al. 2022, "FP8 formats for deep learning" (2209.05433); Wortsman et al. 2023, "Stable and low-precision
training for large-scale vision-language models" (2304.13013); Dettmers et al. 2022, "8-bit optimizers via block-wise
quantization" (2110.02861).
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from reference.dtypes import accumulator


@dataclass(frozen=True)
class EightBitNumbers:
    """A kind of 8-bit numbers."""

    dtype: torch.dtype
    largest: float


FP8 = EightBitNumbers(torch.float8_e4m3fn, 448.0)  # 3 bits of a mantissa; few still take E5M2 for gradients beside it
E5M2 = EightBitNumbers(torch.float8_e5m2, 57344.0)  # 2 bits, and as far as float16: for gradients under one scale
INT8 = EightBitNumbers(torch.int8, 127.0)
ROOTS = EightBitNumbers(torch.uint8, 1.0)  # of what is not negative: 0, and 255 steps of a 16th of an octave up to 1
OCTAVE = 16  # steps


def scale_of(amax: Tensor, numbers: EightBitNumbers) -> Tensor:
    """The smallest power of two with which numbers up to `amax` do not overflow; 1 for zeros, NaN for NaN and inf."""
    mantissa, exponent = torch.frexp(amax.to(accumulator(amax.dtype)) / numbers.largest)  # of 0.5 to below 1
    lowest = -24 if amax.dtype is torch.float16 else -100  # the least that float16 has; the reciprocal is finite, too
    exponent = (exponent - (mantissa == 0.5).int()).clamp(min=lowest)
    scale = torch.ldexp(torch.ones_like(amax), exponent)
    return torch.where(amax.isfinite(), torch.where(amax > 0, scale, 1.0), torch.nan)


def codes(x: Tensor, scale: Tensor, numbers: EightBitNumbers) -> Tensor:
    """The 8-bit numbers next to x / scale. What is larger than the largest becomes that one."""
    scaled = (x / scale).clamp(-numbers.largest, numbers.largest)
    if numbers is ROOTS:
        steps = OCTAVE * scaled.double().log2()  # in float32 it depends on where in a tensor a number is
        scaled = torch.where(scaled > 0, (255 + steps).clamp(min=1), scaled)  # none is lost: it is divided by
    return (scaled if numbers.dtype.is_floating_point else scaled.nan_to_num().round()).to(numbers.dtype)


def decoded(codes: Tensor, scale: Tensor, numbers: EightBitNumbers) -> Tensor:
    """What codes say, in the dtype of `scale`, of which there is one for each code, or that spreads to them."""
    if numbers is not ROOTS:
        return codes.to(scale.dtype) * scale
    steps = codes.int() - 255  # a power of two, and one of 16 fractions: with another scale exactly the same number
    sixteenths = torch.arange(OCTAVE, dtype=torch.float64, device=codes.device) / OCTAVE
    fractions = torch.exp2(sixteenths).to(scale.dtype)  # from float64: in float32 a GPU and a CPU round otherwise
    values = torch.ldexp(fractions[(steps % OCTAVE).long()], torch.div(steps, OCTAVE, rounding_mode="floor"))
    return torch.where(codes > 0, values, 0.0) * scale


def rounded(x: Tensor, amax: Tensor, numbers: EightBitNumbers) -> Tensor:
    """`x` as 8-bit numbers with the scale for `amax` say it: codes times scale."""
    scale = scale_of(amax, numbers)
    return codes(x, scale, numbers).to(x.dtype) * scale


def rows(x: Tensor, numbers: EightBitNumbers) -> Tensor:
    """Each row of `x` with a scale of its own, rounded."""
    return rounded(x, x.abs().amax(-1, keepdim=True), numbers)


class PlainLinear(Function):
    """`apply(x, weight, numbers)`: x Wᵀ as said above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, numbers: EightBitNumbers) -> Tensor:
        few = rounded(weight, weight.abs().amax(), numbers)
        ctx.save_for_backward(x, few)
        ctx.numbers = numbers
        return rows(x, numbers) @ few.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, few = ctx.saved_tensors
        of_weight = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        return rows(gradient, ctx.numbers) @ few, of_weight, None


def linear(x: Tensor, weight: Tensor, numbers: EightBitNumbers) -> Tensor:
    """[..., in] and [out, in] -> [..., out], by products of 8-bit numbers; see above for its backward."""
    return PlainLinear.apply(x, weight, numbers)


class DelayedScale:
    """A scale from the past: the largest of the last steps, so that no look at the numbers comes before their product.

    What grows faster than the history knows overflows, and is cut off at the largest number: `margin` powers of two are
    left free for that. Under an average of 8 bits one step of such numbers is rarely noticed, which is the trouble.
    In the first step there is no past, and nothing is rounded. What is not finite is not remembered, and zero is not:
    no scale comes of it.

    Args:
        numbers: of 8 bits.
        steps: that are remembered.
        margin: factors of two between the largest number known and the largest that there is.

    Micikevicius et al. 2022, section 3; NVIDIA's Transformer Engine calls it `DelayedScaling`.
    """

    def __init__(self, numbers: EightBitNumbers, steps: int = 16, margin: int = 0) -> None:
        self.numbers, self.margin = numbers, margin
        self.history: deque[float] = deque(maxlen=steps)
        self._now = 0.0

    def round(self, x: Tensor) -> Tensor:
        """`x` as codes with the scale of the past say it; the largest of it is noted for later."""
        self._now = float(torch.maximum(x.abs().amax(), x.new_tensor(self._now)))  # NaN, if one of them is
        if not self.history:
            return x
        scale = scale_of(torch.tensor(max(self.history), dtype=x.dtype), self.numbers) * 2.0**self.margin
        return codes(x, scale, self.numbers).to(x.dtype) * scale

    def end_step(self, amax: float | None = None) -> None:
        """Remember the step's largest number: of all ranks that have a part of the tensor, if `amax` says it."""
        largest = self._now if amax is None else amax
        if isfinite(largest) and largest > 0:
            self.history.append(largest)
        self._now = 0.0

    def state_dict(self) -> dict[str, list[float]]:
        """What it takes to resume."""
        return {"history": list(self.history)}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Remember what another one did."""
        self.history = deque(state["history"], maxlen=self.history.maxlen)


def stochastic_bf16(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """float32 to bfloat16, up or down by chance, so that the mean is right: an update of 2^-12 is not always lost.

    bfloat16 is the first half of float32's bits. A random second half, added, carries into the first as often as it
    should. What is not finite stays as it is.
    """
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32, device=x.device)
    return carried(x, noise)


def carried(x: Tensor, noise: Tensor) -> Tensor:
    """float32 to bfloat16, with `noise`, int32 from 0 to below 2^16, added to the half of the bits that is dropped."""
    bits = (x.view(torch.int32) + noise) & ~0xFFFF
    return torch.where(x.isfinite(), bits.view(torch.float32), x).to(torch.bfloat16)


BLOCK = 256  # numbers of an optimizer's state that share a scale


def pack(x: Tensor, numbers: EightBitNumbers, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """An optimizer's state in 8 bits: codes of the flat `x`, padded to whole blocks, and a scale for each block.

    Dettmers's codes are spread like the numbers of Adam's moments, many of which are small beside the largest: so are
    those of E4M3, which reach from 448 down to 2^-9, and ROOTS. With scales that are powers of two, what is made again
    and packed once more, in the same blocks or in parts of them, stays what it is.
    """
    padded = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
    scales = scale_of(padded.abs().amax(1, keepdim=True), numbers)
    return codes(padded, scales, numbers), scales


def unpack(packed: Tensor, scales: Tensor, numbers: EightBitNumbers, like: Tensor) -> Tensor:
    """The state again, in the form and the dtype of `like`."""
    return decoded(packed, scales.to(like.dtype), numbers).flatten()[: like.numel()].view_as(like)


MOMENTS = {"first": FP8, "root": ROOTS}
"""Of what numbers they are kept: the second moment falls by 5 % in a step whose gradient is 0, and its root by half of
that. Numbers of 3 bits are 6 to 12 % apart, so to the nearest of them it would never fall; ROOTS are 4 % apart, and it
falls by one of them. That is so for gradients near zero alone: a root stays as long as they are more than 0.39 of it,
and with a beta of 0.999 in the place of 0.95 it never falls."""


def eight_bit_adamw(
    weight: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    rate: float,
    decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> None:
    """One step of AdamW whose moments are packed between steps, in place on `weight` and `state`.

    What is packed of the second moment is its root: the square of a small number would be lost, and divided by.

    Args:
        weight, gradient: of one shape.
        state: {} before the first step; then {"step": a count, "first" and "root": what `pack` makes}.
        rate, decay, betas, eps: as for AdamW.
    """
    nothing = torch.zeros_like(weight)
    m, root = (unpack(*state[name], numbers, weight) if state else nothing for name, numbers in MOMENTS.items())
    m = m.lerp(gradient, 1 - betas[0])
    v = root.square() * betas[1] + gradient.square() * (1 - betas[1])
    step = state.get("step", 0) + 1
    state.update(step=step, first=pack(m, FP8), root=pack(v.sqrt(), ROOTS))
    weight.mul_(1 - rate * decay)
    weight.addcdiv_(m / (1 - betas[0] ** step), (v / (1 - betas[1] ** step)).sqrt() + eps, value=-rate)

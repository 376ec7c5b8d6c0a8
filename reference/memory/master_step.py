"""One step of mixed precision, in one function: the model computes with 16 bits, and learns with 32.

An update is about a thousandth of its weight. bf16 keeps 8 significant bits: to add less than a 512th changes nothing.
So the optimizer updates a master copy in float32, in which small steps add up, and the model gets what comes of
it, rounded, after each step (Micikevicius et al. 2018, "Mixed precision training").

Gradients come in 16 bits and times the loss's scale. All that is done with them, beginning with the division by that
scale, is done in float32: what the scale has saved from underflow would underflow here. For any optimizer, and for
gradients that are added up over micro-batches, see `reference.memory.precision`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def update_masters(
    working: Sequence[Tensor],
    gradients: Sequence[Tensor],
    masters: Sequence[Tensor],
    scale: float,
    max_norm: float,
    learning_rate: float,
) -> Tensor:
    """One step of gradient descent, clipped, in place: on the masters, and from there to the working weights.

    Args:
        working: 16-bit weights.
        gradients: of the loss times `scale`, in the dtype and the shapes of `working`.
        masters: float32, of the same shapes.
        scale: of the loss.
        max_norm: where the norm of all gradients together is larger, they are scaled down to it.
        learning_rate: what a gradient is multiplied by.

    Returns: the norm of all gradients before clipping, without the scale; a float32 scalar.
    """
    norm = torch.stack([(gradient.float() / scale).norm() for gradient in gradients]).norm()
    clipping = (max_norm / norm).clamp(max=1.0)
    for weight, gradient, master in zip(working, gradients, masters, strict=True):
        master -= learning_rate * clipping * (gradient.float() / scale)
        weight.copy_(master)
    return norm

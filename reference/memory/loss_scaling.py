"""Loss scaling: gradients that are too small for fp16 pass through backward larger than they are.

This is `plain.scaled_step` with: any optimizer, any form of data parallelism, and a state that a checkpoint holds.

fp16 ends at 6e-8 below, and many gradients are smaller than that; it ends at 65504 above. So the loss, and with it each
gradient, is multiplied by a scale before backward, and the gradients are divided by it in fp32. bf16 reaches as far as
fp32, and needs nothing of the kind.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import device_of
from reference.errors import BadInput

from .precision import Precision

LARGEST_SCALE = 2.0**127
"""The largest power of two in fp32, in which the loss is."""


class LossScaler:
    """Scale the loss up before backward, so that small gradients survive fp16, and gradients down after it.

        scaler.scale(loss).backward()
        finite = scaler.unscale(gradients)      in fp32, which can hold small numbers
        if finite: optimizer.step()             else leave this batch out
        scaler.update(finite)

    How much? As much as possible: until some gradient overflows to infinity. Then the step is skipped and the scale is
    halved; after `interval` good steps in a row it is doubled again. A power of two changes exponents alone, so scaling
    rounds nothing. Micikevicius et al. 2018, sec. 3.2, scale by a constant; the rule is that of NVIDIA's tools.

    Raises:
        BadInput: if the scale is not positive, or would be doubled after no step at all.
    """

    def __init__(self, factor: float = 2.0**16, interval: int = 2000) -> None:
        if not (factor > 0 and interval >= 1):
            raise BadInput(
                f"factor {factor}, interval {interval}: a scale is above 0, and is doubled after at least 1 good step"
            )
        self.factor, self.interval = factor, interval  # factor: the scale of the next loss
        self.good_steps = 0  # in a row, since the scale has changed

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to go backward from; a loss in fp32, since fp16 may not reach as far as the scale itself."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor | None], groups: Iterable[ProcessGroup] = ()) -> bool:
        """Scale gradients down, in place, and say whether all of them are finite.

        Args:
            gradients: what this rank updates from, in fp32; None where there is none.
            groups: axes along which ranks hold different gradients: one all-reduce of one number over each. A step must
                be skipped by all ranks or by none. None of them where every rank holds all gradients.

        Returns:
            True if no gradient of any rank is infinite or NaN.

        Raises:
            BadInput: if a gradient is in fp16, where it would be rounded to 0.
        """
        known = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
        if any(gradient.dtype == torch.float16 for gradient in known):
            raise BadInput("gradients in fp16 vanish when they are scaled down: hand in copies in fp32")
        for gradient in known:
            gradient.mul_(1 / self.factor)
        largest = [torch.linalg.vector_norm(gradient, ord=math.inf) for gradient in known]
        finite = not largest or bool(torch.stack(largest).isfinite().all())
        for group in groups:
            finite = _by_all(finite, group)
        return finite

    def update(self, finite: bool) -> None:
        """Choose the next scale, knowing whether this one was too much.

        Raises:
            FloatingPointError: if gradients are not finite although the loss is hardly scaled. Scaling is not to blame.
        """
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor /= 2
            if self.factor < 1:
                raise FloatingPointError("gradients are infinite or NaN however little the loss is scaled")
        elif self.good_steps == self.interval:
            self.factor = min(2 * self.factor, LARGEST_SCALE)
            self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {"factor": self.factor, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self.factor, self.good_steps = state["factor"], state["good_steps"]


class NoScaler:
    """Stands where a `LossScaler` would, for dtypes that reach far enough: changes nothing, looks at nothing."""

    def scale(self, loss: Tensor) -> Tensor:
        """The loss."""
        return loss

    def unscale(self, gradients: Iterable[Tensor | None], groups: Iterable[ProcessGroup] = ()) -> bool:
        """True: no step is skipped."""
        return True

    def update(self, finite: bool) -> None:
        """There is nothing to choose."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to know."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to resume from."""


def scaler_of(precision: Precision) -> LossScaler | NoScaler:
    """The scaler that a precision needs."""
    return LossScaler() if precision.scaled else NoScaler()


def _by_all(finite: bool, group: ProcessGroup) -> bool:
    """True if it is true on every rank of `group`."""
    overflows = torch.tensor(float(not finite), device=device_of(group))
    dist.all_reduce(overflows, group=group)
    return overflows.item() == 0

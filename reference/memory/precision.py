"""Mixed precision: compute in few bits, remember in many (Micikevicius et al. 2018, "Mixed precision training").

| name | compute | gradients | master | loss scaling | bytes for each parameter, with Adam |
|------|---------|-----------|--------|--------------|-------------------------------------|
| fp64 | 8       | 8         | itself | no           | 8 + 8 + 16 = 32                     |
| fp32 | 4       | 4         | itself | no           | 4 + 4 + 8 = 16                      |
| bf16 | 2       | 4         | 4      | no           | 2 + 4 + 4 + 8 = 18                  |
| fp16 | 2       | 4         | 4      | dynamic      | 2 + 4 + 4 + 8 = 18                  |

Matrix products of 16 bits are fast, and activations take half of the room. Sums are another matter: what is added to a
number more than 512 times as large vanishes in bf16, which keeps 8 bits; at a power of two 256 times is enough. An
update is about a thousandth of its weight, and one micro-batch's gradient a K-th of the sum: both would be lost, a bit
at a time and without any error (see `sums`). So the optimizer updates a master copy of each weight in fp32, and
gradients are added up in fp32.

fp16 has a second trouble: it ends at 6e-8 below and at 65504 above, and many gradients are smaller than that. See
`LossScaler`. bf16 reaches as far as fp32, which is why it won.
"""

import math
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.errors import BadInput


@dataclass(frozen=True)
class Precision:
    """In which dtypes a model is trained."""

    compute: torch.dtype  # of working parameters and activations
    gradients: torch.dtype  # in which gradients are added up and travel
    master: torch.dtype  # of what the optimizer updates, and of its state
    scaled: bool = False  # the loss is scaled up before backward, as much as gradients in `compute` can take


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision(torch.float32, torch.float32, torch.float32),
        "bf16": Precision(torch.bfloat16, torch.float32, torch.float32),
        "fp16": Precision(torch.float16, torch.float32, torch.float32, scaled=True),
        "fp64": Precision(torch.float64, torch.float64, torch.float64),  # for exact tests
    }
)


class MasterWeights:
    """Exact copies of low-precision parameters, and exact sums of their gradients, in one process.

        loss.backward()         any number of times: gradients add up in `precision.gradients`
        weights.collect()       masters have the sums as their `.grad`
        optimizer.step()        over weights.masters
        weights.publish()       the model computes with the masters, rounded

    A gradient is added to its sum as soon as backward has made it, and is then forgotten: at no time are there two of a
    parameter for longer than that takes. In several processes the forms of data parallelism do all this on buckets.

    Args:
        parameters: as exact as they are known. They are rounded to `precision.compute` here, after the copy; those that
            are frozen have no master, and integers among them stay as they are.
        precision: one with masters of their own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], precision: Precision) -> None:
        self._dtype = precision.gradients
        self._master: dict[nn.Parameter, nn.Parameter] = {}
        self._sum: dict[nn.Parameter, Tensor] = {}
        for parameter in dict.fromkeys(parameters):
            exact = parameter.detach()
            if parameter.is_floating_point():
                parameter.data = exact.to(precision.compute)
            if parameter.requires_grad:
                self._master[parameter] = nn.Parameter(exact.to(precision.master, copy=True))
                parameter.register_post_accumulate_grad_hook(partial(_add, weakref.ref(self)))

    @property
    def masters(self) -> list[nn.Parameter]:
        """What the optimizer updates, in the order of the parameters."""
        return list(self._master.values())

    def collect(self) -> None:
        """Hand each master its gradient; None if nobody has used the parameter."""
        for parameter, master in self._master.items():
            total = self._sum.pop(parameter, None)
            master.grad = None if total is None else total.to(master.dtype)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters to the working parameters."""
        for parameter, master in self._master.items():
            parameter.copy_(master)

    def take(self, parameter: nn.Parameter) -> None:
        """Move a parameter's gradient into its sum."""
        if parameter in self._sum:
            self._sum[parameter] += parameter.grad
        else:
            self._sum[parameter] = parameter.grad.to(self._dtype)
        parameter.grad = None


def _add(weights: "weakref.ref[MasterWeights]", parameter: nn.Parameter) -> None:
    """A hook. Weak, since the garbage collector can't look into autograd: masters would live as long as the model."""
    if (found := weights()) is not None:
        found.take(parameter)


LARGEST_SCALE = 2.0**127
"""The largest power of two in fp32, in which the loss is."""


class LossScaler:
    """Scale the loss up before backward, so that small gradients survive fp16, and gradients down after it.

        scaler.scale(loss).backward()
        finite = scaler.unscale(gradients)      in fp32, where small numbers are at home
        if finite: optimizer.step()             else leave this batch out
        scaler.update(finite)

    How much? As much as possible: until some gradient overflows to infinity. Then the step is skipped and the scale is
    halved; after `interval` good steps in a row it is doubled again. A power of two changes exponents alone, so scaling
    rounds nothing. Micikevicius et al. 2018, sec. 3.2, scale by a constant; the rule is that of NVIDIA's tools.

    Raises:
        BadInput: if the scale is not positive, would not grow or would not shrink.
    """

    def __init__(
        self, factor: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
    ) -> None:
        if not (factor > 0 and growth > 1 and 0 < backoff < 1 and interval >= 1):
            raise BadInput(
                f"factor {factor}, growth {growth}, backoff {backoff}, interval {interval}: "
                "a scale is above 0, grows by more than 1, shrinks by less than 1, and after at least 1 step"
            )
        self.factor = factor  # the scale of the next loss
        self.growth, self.backoff, self.interval = growth, backoff, interval
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
            self.factor *= self.backoff
            if self.factor < 1:
                raise FloatingPointError("gradients are infinite or NaN however little the loss is scaled")
        elif self.good_steps == self.interval:
            self.factor = min(self.factor * self.growth, LARGEST_SCALE)
            self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {"factor": self.factor, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
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
        """Nothing to go on from."""


def scaler_of(precision: Precision) -> LossScaler | NoScaler:
    """The scaler that a precision needs."""
    return LossScaler() if precision.scaled else NoScaler()


def _by_all(finite: bool, group: ProcessGroup) -> bool:
    """True if it is true on every rank of `group`."""
    device = torch.device("cuda" if dist.get_backend(group) == dist.Backend.NCCL else "cpu")
    overflows = torch.tensor(float(not finite), device=device)
    dist.all_reduce(overflows, group=group)
    return overflows.item() == 0

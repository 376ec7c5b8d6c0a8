"""Optimizers whose momentum travels in 1 bit: 1-bit Adam, 0/1 Adam, 1-bit LAMB.

Adam divides by the root of the variance v, and v needs the square of the whole gradient: no sum of signs has that. But
v soon changes little. So

    first     exact steps: gradients travel as they are, Adam's step, v is learned
    then      v stays; each rank brings its gradient into the momentum of all, and the momentum travels in 1 bit

              b1 m/n + (1 - b1) g, on each of n ranks  ->  `signs.OneBit`  ->  m of all

| optimizer    | exact steps                                                    | besides                             |
|--------------|-----------------------------------------------------------------|-------------------------------------|
| `OneBitAdam` | the first `freeze_after`                                       |                                     |
| `ZeroOneAdam`| every step, every second, every fourth, ..., `kappa` of each   |                                     |
| `OneBitLamb` | the first `freeze_after`                                       | the learning rate of each parameter |

Where v is zero, an element has never had a gradient (a byte that no text has, a masked position). 1 bit cannot say
zero: the momentum there would be the scale of others, divided by the root of zero. So it is masked: neither sent as
anything but zero, nor remembered, nor updated.

The gradient's clip is the momentum's in 1-bit steps: what has arrived is clipped, where it is longer. 0/1 Adam also
leaves out messages and lets replicas take steps of their own in between; that part is not here.

Tang et al. 2021 (arXiv:2102.02888); Lu et al. 2022, "Maximizing communication efficiency ... via 0/1 Adam"
(arXiv:2202.06009); Li et al. 2021, "1-bit LAMB" (arXiv:2104.06069).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import ParameterShard
from reference.errors import BadInput

from .memory import all_reduce_bytes, elements, spread
from .signs import OneBit, cut


class OneBitAdam(torch.optim.Optimizer):
    """AdamW, but in 1-bit steps `grad` is the momentum, and the variance stays.

    Args:
        parameters: to update.
        lr, betas, eps, weight_decay: as for AdamW.
        freeze_after: so many steps are exact.

    Raises:
        BadInput: if none is exact: the variance would not be known.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        freeze_after: int = 100,
        **more: Any,
    ) -> None:
        if freeze_after < 1:
            raise BadInput(f"a variance is learned in 1 step or more, not in {freeze_after}")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "freeze_after": freeze_after}
        super().__init__(parameters, options | more)

    def is_exact(self, step: int) -> bool:
        """Whether gradients travel as they are in a step, counted from 0."""
        return step < self.defaults["freeze_after"]

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update each parameter that has a gradient, or in a 1-bit step the momentum."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state, (b1, b2) = self.state[parameter], group["betas"]
        if not state:
            state.update(self.first_state(parameter))
        m, v, before = state["exp_avg"], state["exp_avg_sq"], state["exp_avg"].clone()
        if exact := self.is_exact(state["step"]):
            m.lerp_(parameter.grad, 1 - b1)
            v.lerp_(parameter.grad.square(), 1 - b2)
            state["learned"] += 1
        else:
            m.copy_(parameter.grad).masked_fill_(v == 0, 0)
        state["step"] += 1
        root = (v / (1 - b2 ** state["learned"])).sqrt_().add_(group["eps"])
        update = (m / (1 - b1 ** state["step"])).div_(root).add_(parameter, alpha=group["weight_decay"])
        parameter.sub_(update, alpha=group["lr"] * self.factor(parameter, update, before, exact, group))

    def first_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        """What is remembered of a parameter before its first step."""
        zeros = torch.zeros_like(parameter)
        return {"step": 0, "learned": 0, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    def factor(
        self, parameter: nn.Parameter, update: Tensor, before: Tensor, exact: bool, group: dict[str, Any]
    ) -> float:
        """By which the learning rate of a parameter is multiplied."""
        return 1.0


class ZeroOneAdam(OneBitAdam):
    """1-bit Adam whose variance is learned on, in steps that become rarer.

    Args:
        parameters, lr, betas, eps, weight_decay: as for `OneBitAdam`; there is nothing after which all is frozen.
        kappa: so many exact steps follow each other at one distance, before the distance doubles.

    Raises:
        BadInput: if there is none at a distance.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, kappa: int = 16, **options: Any) -> None:
        if kappa < 1:
            raise BadInput(f"1 exact step or more follow each other at one distance, not {kappa}")
        super().__init__(parameters, lr, kappa=kappa, **options)

    def is_exact(self, step: int) -> bool:
        """As for `OneBitAdam`."""
        distance, kappa = 1, self.defaults["kappa"]
        while step >= distance * kappa:
            step -= distance * kappa
            distance *= 2
        return step % distance == 0


class OneBitLamb(OneBitAdam):
    """LAMB (You et al. 2020): each parameter's step is as long as it is itself, to a factor; with 1-bit momentum.

    In exact steps the factor is the norm of the parameter over that of its update, from 0.01 to 10, and its average is
    remembered. In 1-bit steps it is that average, times how much the variance would have changed since: the largest
    ratio of the roots of the frozen one and of one that is learned on, from gradients that momenta tell.
    """

    def first_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        fresh = {"fresh": torch.zeros_like(parameter), "average": 0.0, "change": 1.0}
        return super().first_state(parameter) | fresh

    def factor(
        self, parameter: nn.Parameter, update: Tensor, before: Tensor, exact: bool, group: dict[str, Any]
    ) -> float:
        """As for `OneBitAdam`."""
        state, (b1, b2) = self.state[parameter], group["betas"]
        if exact:
            state["fresh"].copy_(state["exp_avg_sq"])
            length, of_update = float(parameter.norm()), float(update.norm())
            now = min(10.0, max(0.01, length / of_update)) if length and of_update else 1.0
            state["average"] = 0.9 * state["average"] + 0.1 * now if state["step"] > 1 else now
            return now
        gradient = (state["exp_avg"] - b1 * before) / (1 - b1)
        state["fresh"].lerp_(gradient.square(), 1 - b2)
        roots = (state[name].sqrt() + group["eps"] for name in ("exp_avg_sq", "fresh"))
        ratios = torch.div(*roots)[state["exp_avg_sq"] > 0]  # an element that is masked says nothing
        change = float(ratios.max()) if len(ratios) else 1.0
        last = state["change"]
        state["change"] = min(max(min(max(change, 0.5), 4.0), 0.9 * last), 1.1 * last)
        return state["average"] * state["change"]


class Momenta:
    """Where a compressor finds the momenta of an optimizer that is made later than itself."""

    def __init__(self) -> None:
        self._masters: dict[str, nn.Parameter] = {}
        self._optimizer: OneBitAdam | None = None

    def attach(self, parts: Iterable[ParameterShard], optimizer: torch.optim.Optimizer) -> None:
        """From now on they are those of this optimizer; one whose momentum does not travel has none."""
        if isinstance(optimizer, OneBitAdam):
            self._masters, self._optimizer = {part.name: part.master for part in parts}, optimizer

    def of(self, name: str) -> tuple[Tensor, Tensor, float] | None:
        """Momentum and variance of a parameter, and how much of the momentum a step keeps; None in an exact step."""
        if self._optimizer is None:
            return None
        state = self._optimizer.state.get(self._masters[name])
        if not state or self._optimizer.is_exact(state["step"]):
            return None
        return state["exp_avg"], state["exp_avg_sq"], self._optimizer.defaults["betas"][0]


class MomentumSum(OneBit):
    """Sums of gradients in exact steps, and in 1-bit steps the momentum of all.

    Args:
        communicator: n ranks.
        momenta: of the optimizer.
    """

    def __init__(self, communicator: Communicator, momenta: Momenta) -> None:
        super().__init__(communicator)
        self.momenta = momenta

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Gradients become sums, or momenta, in place."""
        known = [self.momenta.of(each.name) for each in self.calls[number]]
        if any(each is None for each in known):
            whole = torch.cat([gradient.flatten() for gradient in gradients])
            self.communicator.start_all_reduce(whole)()
            spread(whole, gradients)
            return
        n = self.communicator.size()
        for gradient, (m, _, kept) in zip(gradients, known, strict=True):
            gradient.mul_(1 - kept).add_(m.view_as(gradient), alpha=kept / n)
        super().sum(number, gradients)
        for each, gradient, (_, v, _) in zip(self.calls[number], gradients, known, strict=True):
            never = (v == 0).view_as(gradient)
            gradient.masked_fill_(never, 0)
            self.residuals[each.name].masked_fill_(never.flatten(), 0)
            of_chunk = cut(never.flatten().to(torch.uint8), n)[self.communicator.rank()]
            self.of_server[each.name].masked_fill_(of_chunk.bool().unsqueeze(0), 0)

    def sent_exactly(self, rank: int, n: int, itemsize: int) -> int:
        """Of an exact step."""
        return sum(all_reduce_bytes(rank, n, elements(call), itemsize) for call in self.calls)

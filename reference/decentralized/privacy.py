"""Differential privacy of clients: what each says is clipped, noise hides the rest, and epsilon says how well.

DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963): each client takes part with probability q by itself; its change is
clipped to length C; normal noise of deviation z C is added to the sum, which is divided by q times the number of
clients, and not by how many came: that would tell whether one came.

Epsilon follows from the Rényi divergence of a step, at whole orders a (Mironov, Talwar & Zhang 2019, arXiv:1908.10530,
section 3.3), which add up over steps:

    RDP(a) = log( sum over k of  C(a, k) (1 - q)^(a-k) q^k exp(k (k-1) / (2 z^2)) ) / (a - 1)

and from there to epsilon and delta by Canonne, Kamath & Steinke 2020 (arXiv:2004.00010, proposition 12):

    epsilon = RDP(a) + log(1 - 1/a) - (log delta + log a) / (a - 1), the least over all orders

It is a bound: Google's `dp-accounting` gives the same by its `RdpAccountant`, and about a tenth less by convolving
distributions of the loss itself. That library needs SciPy and 250 MB, so here stands the formula.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, isfinite, lgamma, log, log1p

import torch
from torch import Tensor

from reference.errors import BadInput

ORDERS = range(2, 257)


@dataclass(frozen=True)
class Privacy:
    """What is done for it.

    Attributes:
        clip: C, the longest change of a client.
        noise: z, the deviation of the noise as a multiple of that.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        if self.clip <= 0 or self.noise < 0:
            raise BadInput(f"a change is clipped to a length above 0, and noise is 0 or more: {self}")

    def draw(self, like: Tensor) -> Tensor:
        """Noise for a sum, from torch's own stream: a rank that knows its seed can take the noise off again."""
        return torch.randn_like(like) * (self.noise * self.clip)


def clipped(change: Tensor, length: float, norm: float | None = None) -> Tensor:
    """A change [N], shortened to a length where it is longer. One that is not finite is left out: zeros.

    Args:
        change: of a client, or a part of it.
        length: C.
        norm: of all of it; that of `change` by default.
    """
    norm = float(change.norm()) if norm is None else norm
    return change * min(1.0, length / max(norm, 1e-300)) if isfinite(norm) else torch.zeros_like(change)


def epsilon(part: float, noise: float, rounds: int, delta: float, orders: Iterable[int] = ORDERS) -> float:
    """What rounds of clipped sums give away at most about one client, added or removed.

    Args:
        part: q, with which a client takes part in a round.
        noise: z, as in `Privacy`; 0 gives all away.
        rounds: that there were.
        delta: probability with which the bound need not hold, well below 1 / clients.
        orders: of divergences, of which the best counts.

    Raises:
        BadInput: for a part or a delta that is none.
    """
    if not 0 < part <= 1 or not 0 < delta < 1:
        raise BadInput(f"a part is above 0 and at most 1, delta between 0 and 1: not {part:g} and {delta:g}")
    if noise == 0:
        return inf
    bounds = (rounds * divergence(part, noise, a) + log1p(-1 / a) - (log(delta) + log(a)) / (a - 1) for a in orders)
    return max(0.0, min(bounds))


def divergence(part: float, noise: float, order: int) -> float:
    """Rényi divergence of a step with noise from one without the client, at a whole order of 2 or more."""
    if part == 1:
        return order / (2 * noise**2)
    logs = [
        lgamma(order + 1) - lgamma(k + 1) - lgamma(order - k + 1)
        + (order - k) * log1p(-part) + k * log(part) + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    most = max(logs)
    return (most + log(sum(exp(each - most) for each in logs))) / (order - 1)

"""A layer of experts over 4 and 8 ranks against FairScale's `MOELayer`, and against the plain form.

One layer, forward and backward, in float32, with its router. All programs live on the same ranks at the same time, on
gloo, and take their turns; a call takes as long as on its slowest rank; medians. They get the same tokens, weights and
choices, with room for an even share, so that the same choices are dropped; outputs and gradients must be equal. `ratio`
is the peer's time over ours.

FairScale writes routing as products with one-hot tensors, [tokens, experts, capacity], as the GShard paper does; its
gate is asked for such tensors of our choices. The plain form is `reference.expert_parallel.plain.mixture`. A dense
feed-forward in which a token meets as many parameters, on each rank by itself, is there for the reader: what experts
cost besides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import rows
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rows import Row
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.expert_parallel import Dispatch
from reference.expert_parallel.plain import mixture
from reference.models.moe import Experts
from reference.models.moe_config import MoEConfig
from reference.models.routing import choose, fits, room, scores_of

IMPORTS = ("torch._dynamo", "fairscale.nn.moe.moe_layer")
Call = Callable[[], tuple[Tensor, ...]]
"""Forward and backward: the output, and the gradients of tokens, router and this rank's experts."""


@dataclass(frozen=True)
class Load:
    """How much ranks compute for what they send."""

    name: str
    ranks: int
    tokens: int  # of each rank
    width: int
    hidden: int  # of an expert
    rounds: int
    bar: float

    @property
    def config(self) -> MoEConfig:
        """Two experts on each rank, two for each token."""
        return MoEConfig(
            2, self.width, 2, 2, self.hidden, experts=2 * self.ranks, top_k=2, capacity=1.0, normalised=False
        )


LOADS = (
    Load("compute-heavy, 4 ranks", 4, 256, 256, 1024, 15, 1.0),
    Load("compute-heavy, 8 ranks", 8, 256, 256, 512, 11, 1.0),
    Load("communication-heavy, 4 ranks", 4, 512, 256, 16, 31, 1.2),
    Load("communication-heavy, 8 ranks", 8, 256, 256, 16, 21, 1.2),
)


def measure(report: Callable[[Row], None]) -> None:
    """Each load."""
    for load in LOADS:
        with Cluster(load.ranks, preload=IMPORTS) as cluster:
            found = rows.medians(rows.of_ranks(list(cluster.run(on_rank, load))))
        report(rows.faster(f"against FairScale, {load.name}", found["ours"], found["FairScale"], "s", load.bar))
        report(rows.faster(f"against the plain form, {load.name}", found["ours"], found["plain"], "s"))
        report(rows.faster(f"against dense, {load.name}", found["ours"], found["dense"], "s"))


def on_rank(load: Load) -> dict[str, list[float]]:
    """The seconds of each program's calls on this rank."""
    group = rows.plain_gloo()
    calls = programs(load, group)
    rows.require_same({name: call() for name, call in calls.items() if name != "dense"}, as_in="ours")
    return rows.interleaved(calls, load.rounds, partial(dist.barrier, group))


def programs(load: Load, group: ProcessGroup) -> dict[str, Call]:
    """All that is compared, with the same tokens, weights and choices."""
    torch.manual_seed(0)
    config, rank, n = load.config, group.rank(), group.size()
    here = config.experts // n
    router = nn.Parameter(torch.randn(config.experts, load.width) / load.width**0.5)
    experts = Experts(config)
    for parameter in experts.parameters():
        whole = torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5
        parameter.data = whole[rank * here : (rank + 1) * here].clone()
    x, gradient = (torch.randn(n, load.tokens, load.width)[rank : rank + 1].clone() for _ in range(2))
    x.requires_grad_()
    leaves = (x, router, *experts.parameters())

    def route() -> tuple[Tensor, Tensor]:
        scores = scores_of(F.linear(x, router), config)
        chosen = choose(scores.detach(), config)
        return chosen, scores.gather(-1, chosen) * fits(chosen, config)

    dispatch = Dispatch(over(group), config.experts)

    def ours() -> Tensor:
        chosen, weights = route()
        return dispatch.start(experts, x, chosen.masked_fill(weights == 0, -1), weights)()

    def plain() -> Tensor:
        chosen, weights = route()
        return mixture(x[0], chosen[0], weights[0], [one(experts, e) for e in range(here)], group)[None]

    theirs = fairscales(load, group, experts, route)
    dense = nn.Linear(load.width, 3 * config.top_k * load.hidden // 2, bias=False)

    def alone() -> Tensor:
        return dense(x) @ dense.weight

    calls = {"ours": ours, "plain": plain, "FairScale": lambda: theirs(x.transpose(0, 1)).transpose(0, 1)}
    return {**{name: by_autograd(call, leaves, gradient) for name, call in calls.items()}, "dense": by_autograd(
        alone, (x, dense.weight), gradient
    )}  # fmt: skip


def by_autograd(forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], gradient: Tensor) -> Call:
    """Forward and backward of it."""

    def call() -> tuple[Tensor, ...]:
        out = forward()
        return out.detach(), *torch.autograd.grad(out, leaves, gradient)

    return call


def one(experts: Experts, number: int) -> Callable[[Tensor], Tensor]:
    """One of a rank's experts: from rows to rows."""
    gate, up, down = experts.gate.weight, experts.up.weight, experts.down.weight
    return lambda x: (F.silu(x @ gate[number].T) * (x @ up[number].T)) @ down[number].T


class OneExpert(nn.Module):
    """One of a rank's experts, as FairScale takes it."""

    def __init__(self, experts: Experts, number: int) -> None:
        super().__init__()
        self.compute = one(experts, number)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.compute(x)


def fairscales(load: Load, group: ProcessGroup, experts: Experts, route: Callable) -> nn.Module:
    """FairScale's layer, with a gate that says our choices in its way."""
    from fairscale.nn.moe.moe_layer import MOELayer

    config = load.config
    capacity = room(load.tokens, config)

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            chosen, weights = (each[0] for each in route())
            masks = F.one_hot(chosen, config.experts).float() * (weights != 0)[..., None]  # [T, k, E]
            places, taken = [], masks.new_zeros(config.experts)
            for mask in masks.unbind(1):
                places.append(((mask.cumsum(0) - 1 + taken) * mask).sum(-1).long())
                taken = taken + mask.sum(0)
            combine = sum(
                weight[:, None, None] * mask[..., None] * F.one_hot(place, capacity)[:, None]
                for weight, mask, place in zip(weights.unbind(1), masks.unbind(1), places, strict=True)
            )
            return combine.new_zeros(()), combine, combine.bool()

    here = len(experts.gate.weight)
    return MOELayer(Gate(), nn.ModuleList([OneExpert(experts, number) for number in range(here)]), group)


if __name__ == "__main__":
    rows.main("expert-parallel", measure)

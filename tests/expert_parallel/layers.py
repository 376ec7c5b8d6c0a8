"""A layer of experts over ranks, and the same in one process: what both make, and all gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.default import over
from reference.expert_parallel.dispatch import Dispatch
from reference.expert_parallel.two_level import TwoLevelDispatch
from reference.mesh import Mesh
from reference.models.moe import Experts
from reference.models.moe_config import MoEConfig
from reference.models.ops import PLAIN
from reference.sharding import Spec, block_of

WIDTH, FEATURES = 4, 6


class Case(NamedTuple):
    """Tokens of n ranks, and how they reach their experts."""

    tokens: tuple[int, ...]  # of each rank
    experts: int = 4
    k: int = 2
    nodes: int = 1
    etp: int = 1
    chunks: int = 1
    dropped: float = 0.0  # share of choices that go nowhere
    seed: int = 0

    @property
    def ep(self) -> int:
        """Ranks that share out experts."""
        return len(self.tokens) // self.etp


def config_of(case: Case) -> MoEConfig:
    """A model that has such a layer."""
    return MoEConfig(2, 8, 1, 1, 8, experts=case.experts, top_k=case.k, expert_hidden=FEATURES, normalised=False)


def inputs_of(case: Case) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each rank: tokens [1, T, D], experts [1, T, k], weights [1, T, k], and the gradient of what comes out."""
    random = torch.Generator().manual_seed(case.seed)
    found = []
    for tokens in case.tokens:
        x, gradient = (torch.randn(1, tokens, WIDTH, generator=random, dtype=torch.float64) for _ in range(2))
        chosen = torch.rand(1, tokens, case.experts, generator=random).argsort(-1)[..., : case.k]
        drop = torch.rand(chosen.shape, generator=random) < case.dropped
        weights = torch.rand(chosen.shape, generator=random, dtype=torch.float64)
        found.append((x, chosen.masked_fill(drop, -1), weights, gradient))
    return found


def experts_of(case: Case, ep: int = 1, etp: int = 1, place: tuple[int, int] = (0, 0)) -> Experts:
    """Experts that a rank holds, by its place along both axes; all of them by default."""
    config, random = config_of(case), torch.Generator().manual_seed(case.seed + 1)
    layer, mesh = Experts(config), Mesh({"ep": ep, "etp": etp})
    for name, dim in (("gate", 1), ("up", 1), ("down", 2)):
        shape = (case.experts, *((FEATURES, WIDTH) if dim == 1 else (WIDTH, FEATURES)))
        whole = torch.randn(shape, generator=random, dtype=torch.float64)
        block = block_of(whole.shape, Spec({"ep": 0, "etp": dim}), mesh, mesh.rank(ep=place[0], etp=place[1]))
        getattr(layer, name).weight = torch.nn.Parameter(block.cut(whole))
    return layer


class Found(NamedTuple):
    """What a rank finds."""

    out: Tensor
    of_x: Tensor
    of_weights: Tensor
    of_experts: tuple[Tensor, ...]


def one_process(case: Case) -> list[Found]:
    """All tokens and all experts in one place; parts of the gradient of all ranks are summed."""
    layer, found = experts_of(case), []
    for x, chosen, weights, gradient in inputs_of(case):
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = PLAIN.start_experts(layer, x, chosen, weights, case.experts)()
        out.backward(gradient)
        found.append((out.detach(), x.grad, weights.grad))
    of_experts = tuple(parameter.grad for parameter in layer.parameters())
    return [Found(*each, of_experts) for each in found]


def groups_of(case: Case) -> dict[str, dist.ProcessGroup]:
    """Ranks in a box, nodes the outermost, those that share matrices the innermost."""
    mesh = Mesh({"nodes": case.nodes, "inside": case.ep // case.nodes, "etp": case.etp})
    found = {}
    for name, axes in {"ep": ("nodes", "inside"), "nodes": ("nodes",), "inside": ("inside",), "etp": ("etp",)}.items():
        for ranks in mesh.groups(*axes):
            group = dist.new_group(list(ranks))
            if dist.get_rank() in ranks:
                found[name] = group
    return found


def on_rank(case: Case) -> Found:
    """The layer over all ranks."""
    groups, rank = groups_of(case), dist.get_rank()
    sharing = over(groups["etp"]) if case.etp > 1 else None
    if case.nodes > 1:
        pair = over(groups["nodes"]), over(groups["inside"])
        dispatch = TwoLevelDispatch(*pair, case.experts, sharing, case.chunks)
    else:
        dispatch = Dispatch(over(groups["ep"]), case.experts, sharing, case.chunks)
    layer = experts_of(case, case.ep, case.etp, divmod(rank, case.etp))
    x, chosen, weights, gradient = inputs_of(case)[rank]
    x, weights = x.requires_grad_(), weights.requires_grad_()
    out = dispatch.start(layer, x, chosen, weights)()
    out.backward(gradient)
    return Found(out.detach(), x.grad, weights.grad, tuple(p.grad for p in layer.parameters()))


def blocks(case: Case, gradients: Sequence[Tensor], rank: int) -> list[Tensor]:
    """Of gradients of all experts, those of the block of a rank."""
    mesh, place = Mesh({"ep": case.ep, "etp": case.etp}), divmod(rank, case.etp)
    at = mesh.rank(ep=place[0], etp=place[1])
    dims = (1, 1, 2)
    return [
        block_of(g.shape, Spec({"ep": 0, "etp": dim}), mesh, at).cut(g) for g, dim in zip(gradients, dims, strict=True)
    ]

"""A step of a small program on a mesh, whose parts are dyed: a ledger to read, with or without a fault in its sums.

Three parameters meet tokens in three ways. The part of rank r is 10^r, so a sum can be read digit by digit, rank 0 on
the right: `reference.trace.ledger` does the same with a base that has room for more.

    mesh dp x tp = 2 x 2     along        ranks 0 to 3 find
    norm                     dp and tp    1111  1111  1111  1111
    query                    dp            101  1010   101  1010
    bias                     dp            101  1010   101  1010
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.groups import Groups
from reference.mesh import Mesh
from reference.trace.ledger import dyed

SUMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"norm": ("dp", "cp", "tp"), "query": ("dp", "cp"), "bias": ("dp", "cp")}
)
"""The axes along which each gradient is to be summed. With sequence parallelism, norms see other tokens along tp."""

WIDTH, TOKENS = 4, 6


class ThreeWays(nn.Module):
    """A norm on a slice of the tokens, some rows of a matrix, and a bias that all tensor-parallel ranks have alike."""

    def __init__(self, tp: int, place: int) -> None:
        super().__init__()
        self.tp, self.place = tp, place
        self.norm = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        self.query = nn.Parameter(torch.ones(WIDTH, WIDTH, dtype=torch.float64).tensor_split(tp)[place].clone())
        self.bias = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A rank's part of a loss: [T, D] -> a scalar."""
        of_slice = self.norm * x.tensor_split(self.tp)[self.place]
        return of_slice.square().sum() + (x @ self.query.T).square().sum() + (x + self.bias).square().sum()


def dyed_step(sizes: Mapping[str, int], faults: Mapping[tuple[str, str], str]) -> dict[str, float]:
    """Forward, backward and the sums of gradients, on each rank: by parameter, the number that the rank finds.

    Args:
        sizes: ranks along dp, cp and tp, the outermost first; an axis may be missing.
        faults: for (parameter, axis) what is wrong with this sum: "missing", "twice" or "mean".
    """
    mesh, rank = Mesh(sizes), dist.get_rank()
    groups = {axis: Groups(dist.group.WORLD, mesh).along(axis) for axis in mesh.names if mesh.size(axis) > 1}
    tp = sizes.get("tp", 1)
    model = ThreeWays(tp, mesh.coordinates(rank).get("tp", 0))
    with dyed(model.parameters(), 10.0**rank):
        model(torch.ones(TOKENS, WIDTH, dtype=torch.float64)).backward()
    for name, parameter in model.named_parameters():
        for axis in SUMS[name]:
            if axis in groups and (fault := faults.get((name, axis))) != "missing":
                dist.all_reduce(parameter.grad, group=groups[axis])
                if fault == "twice":
                    dist.all_reduce(parameter.grad, group=groups[axis])
                if fault == "mean":
                    parameter.grad /= sizes[axis]
    return {name: parameter.grad.flatten()[0].item() for name, parameter in model.named_parameters()}


def ledger_of_step(
    cluster: Cluster, sizes: Mapping[str, int], faults: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> dict[str, list[float]]:
    """By parameter, what each rank of a cluster finds. Arguments as for `dyed_step`."""
    found = cluster.run(dyed_step, dict(sizes), dict(faults))
    return {name: [of_rank[name] for of_rank in found] for name in SUMS}

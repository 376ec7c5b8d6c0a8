"""A layer of experts that no strategy here knows, on two axes: from its specs alone it trains as one process does.

Each rank reads other tokens, and holds some of the experts. Tokens are gathered along the axis of the experts, each
rank computes what its own contribute, and the sums go back. So an expert's gradient is summed over the ranks that hold
it, a router's over all; and each rank finds a part of the gradient of a scale that all experts share.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.collectives import differentiable
from reference.data_parallel import DataParallel, clip, gather_full, gradient_norm
from reference.data_parallel.replicated import DistributedDataParallel
from reference.groups import Groups
from reference.memory.precision import PRECISIONS
from reference.mesh import Mesh
from reference.on_mesh import Along, OnMesh
from reference.oracle import alone, record
from reference.sharding import Placement, Spec
from reference.zero import FullySharded, Sharded, checkpoint

EXPERTS, WIDTH, OUT, TOKENS, STEPS = 5, 4, 6, 12, 4
EXACT, PRECISION, LIMIT = 1e-12, PRECISIONS["fp64"], 0.05
SPECS = {
    "router.weight": Spec(),
    "experts.weight": Spec({"ep": 0}),  # five experts on two ranks: three and two
    "experts.scale": Spec(partial=frozenset({"ep"})),
}
MESHES = {
    "2 x 2": Mesh({"edp": 2, "ep": 2}),
    "1 x 3 of 3": Mesh({"edp": 1, "ep": 3}),
    "4 x 1": Mesh({"edp": 4, "ep": 1}),
}
FORMS = ("ddp", "zero1", "zero2", "fsdp", "fsdp with a scale that stays whole")


class Experts(nn.Module):
    """Some of the experts, each a matrix, and a scale of what all of them make."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(weight), nn.Parameter(scale)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """What these experts contribute to each token [T, D], by its gates [T, E]: [T, F]."""
        return torch.einsum("te,td,edf->tf", gates, x, self.weight).tanh() * self.scale


def values() -> dict[str, Tensor]:
    """Initial parameters, whole."""
    random = torch.Generator().manual_seed(0)
    shapes = {"router.weight": (EXPERTS, WIDTH), "experts.weight": (EXPERTS, WIDTH, OUT), "experts.scale": (OUT,)}
    return {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}


def data(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a step."""
    random = torch.Generator().manual_seed(100 + step)
    return tuple(torch.randn(TOKENS, size, generator=random, dtype=torch.float64) for size in (WIDTH, OUT))


class OneRank:
    """This rank's part of the layer, after the forms that its specs ask for."""

    def __init__(self, mesh: Mesh, kind: str) -> None:
        rank = dist.get_rank()
        self.groups = Groups(dist.group.WORLD, mesh)
        self.all, self.edp, self.ep = (self.groups.along(*axes) for axes in (mesh.names, ("edp",), ("ep",)))
        placed = {name: Placement.of(x.shape, SPECS[name], mesh, rank) for name, x in values().items()}
        held = {name: placed[name].cut(x) for name, x in values().items()}
        self.begin, self.count = placed["experts.weight"].block.begins[0], len(held["experts.weight"])
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False, dtype=torch.float64)
        self.router.weight.data.copy_(held["router.weight"])
        self.experts = Experts(held["experts.weight"], held["experts.scale"])
        shards = kind != "ddp"
        dense = form_of(kind, nn.ModuleDict({"router": self.router}), self.all)
        sparse = form_of(kind, nn.ModuleDict({"experts": self.experts}), self.edp)
        along = [Along(dense, ("edp", "ep") * shards), Along(sparse, ("edp",) * shards)]
        self.form = OnMesh(along, placed, self.groups)
        self.optimizer = torch.optim.Adam([part.master for part in self.form.parts], lr=0.05)

    def loss(self, step: int) -> Tensor:
        """This rank's part of it."""
        x, target = (part.tensor_split(self.all.size())[self.all.rank()] for part in data(step))
        self.input = x.requires_grad_()
        gates = self.router(x).softmax(-1)
        x, gates = (differentiable.all_gather(part, self.ep) for part in (x, gates))
        made = self.experts(x, gates[:, self.begin : self.begin + self.count])
        return (differentiable.reduce_scatter(made, self.ep) - target).square().sum() / TOKENS

    def step(self, step: int) -> float:
        """Take one step. Returns the norm of all gradients."""
        with self.form.micro_batch(last=True):
            self.loss(step).backward()
        self.form.reduce_gradients()
        gradients = [part.master.grad for part in self.form.parts]
        norm = gradient_norm([part.master.grad for part in self.form.parts if part.is_primary], self.form.shard_groups)
        clip(gradients, norm, LIMIT)
        self.optimizer.step()
        self.form.end_step()
        return float(norm)


def form_of(kind: str, module: nn.Module, group: dist.ProcessGroup) -> DataParallel:
    """Data parallelism over a module."""
    if kind.startswith("fsdp"):
        whole_ones = [x for name, x in module.named_parameters() if name.endswith("scale")]
        return FullySharded(module, group, PRECISION, ignored=whole_ones if "whole" in kind else ())
    if kind == "ddp":
        return DistributedDataParallel(module, group, PRECISION)
    return Sharded(module, group, int(kind[-1]), PRECISION)


def trained(mesh: Mesh, kind: str) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """Norms of all steps, parameters after them, and the gradient of this rank's tokens in the last."""
    layer = OneRank(mesh, kind)
    return [layer.step(step) for step in range(STEPS)], gather_full(layer.form), layer.input.grad


def saved_and_loaded(before: Mesh, after: Mesh, kinds: tuple[str, str], folder: Path) -> dict[str, Tensor]:
    """Half of the steps on one mesh, the others on another one, from a checkpoint."""
    first = OneRank(before, kinds[0])
    for step in range(STEPS // 2):
        first.step(step)
    checkpoint.save(folder, first.form, first.optimizer, STEPS // 2, {}, dist.group.WORLD)
    second = OneRank(after, kinds[1])
    begin, _ = checkpoint.load(folder, second.form, second.optimizer, dist.group.WORLD)
    for step in range(begin, STEPS):
        second.step(step)
    return gather_full(second.form)


def one_process(contributions: int) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """The same without ranks. Where experts of one rank are squashed together, so are they here."""
    given = values()
    router = nn.Linear(WIDTH, EXPERTS, bias=False, dtype=torch.float64)
    router.weight.data.copy_(given["router.weight"])
    experts = Experts(given["experts.weight"], given["experts.scale"])
    size, layer = -(-EXPERTS // contributions), nn.ModuleDict({"router": router, "experts": experts})
    inputs = []

    def loss(step: int) -> Tensor:
        x, target = data(step)
        inputs.append(x.requires_grad_())
        gates = router(x).softmax(-1)
        made = sum(
            torch.einsum("te,td,edf->tf", g, x, w).tanh() * experts.scale
            for g, w in zip(gates.split(size, dim=1), experts.weight.split(size), strict=True)
        )
        return (made - target).square().sum() / TOKENS

    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    found = record(layer, alone(layer, optimizer, loss, STEPS, clip=LIMIT))
    return found.gradient_norms, found.parameters, inputs[-1].grad


def far(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """By how much parameters differ, where they do."""
    assert found.keys() == expected.keys()
    apart = {name: float((found[name] - expected[name]).abs().max()) for name in expected}
    return {name: distance for name, distance in apart.items() if not distance < EXACT}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_experts_train_as_in_one_process(clusters: Callable[..., Cluster], mesh: Mesh, kind: str) -> None:
    norms, parameters, of_inputs = one_process(mesh.size("ep"))
    ranks = clusters(len(mesh.ranks)).run(trained, mesh, kind)
    for found_norms, found, _ in ranks:
        assert found_norms == pytest.approx(norms, rel=1e-12)
        assert far(found, parameters) == {}
    torch.testing.assert_close(torch.cat([gradient for _, _, gradient in ranks]), of_inputs, rtol=0, atol=EXACT)


def test_a_checkpoint_fits_any_other_mesh(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    """Of an uneven block in three dims, cut by ZeRO at arbitrary places. Both meshes compute the same function."""
    before, after = Mesh({"edp": 2, "ep": 2}), MESHES["2 x 2"].view({"ep": 2, "edp": 2}, of=("edp", "ep"))
    _, expected, _ = one_process(2)
    for number, kinds in enumerate([("ddp", "fsdp"), ("fsdp", "zero1"), ("zero2", "ddp")]):
        folder = tmp_path / str(number)
        ranks = clusters(4).run(saved_and_loaded, before, after, kinds, folder)
        assert [far(found, expected) for found in ranks] == [{}] * 4


@pytest.mark.parametrize("name", ["experts.scale", "experts.weight"])
def test_a_wrong_spec_is_noticed(clusters: Callable[..., Cluster], name: str) -> None:
    """A forgotten sum, and an expert that counts once for each axis."""
    _, parameters, _ = one_process(2)
    for _, found, _ in clusters(4).run(trained_with_a_wrong_spec, MESHES["2 x 2"], name):
        assert far(found, parameters)


def trained_with_a_wrong_spec(mesh: Mesh, name: str) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """As `trained`, where the spec of one parameter says that it is replicated and summed nowhere else."""
    right = SPECS["experts.scale"]
    SPECS["experts.scale"] = Spec() if name == "experts.scale" else Spec({"ep": None})
    try:
        return trained(mesh, "ddp")
    finally:
        SPECS["experts.scale"] = right

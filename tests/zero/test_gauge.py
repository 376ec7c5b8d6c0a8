"""A gauge that knows what is what in each form."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reference.cluster import Cluster
from reference.data_parallel.gradient_sync import DataParallel
from reference.data_parallel.replicated import DistributedDataParallel
from reference.groups import Groups
from reference.memory.history import History, MemoryKind
from reference.memory.precision import PRECISIONS, Precision
from reference.memory.recipe import Breakdown
from reference.mesh import Mesh
from reference.on_mesh import Along, OnMesh
from reference.sharding import Placement, Spec
from reference.zero import FullySharded, Sharded
from reference.zero.lab.measured_step import kept, measured_step, name_of

LAYERS, WIDTH = 3, 32
EACH = WIDTH * WIDTH  # parameters of a layer; four ranks divide them
ALL = LAYERS * EACH

Make = Callable[[nn.Module, Precision], DataParallel]


def replicas(model: nn.Module, precision: Precision) -> DataParallel:
    return DistributedDataParallel(model, dist.group.WORLD, precision)


def zero_1(model: nn.Module, precision: Precision) -> DataParallel:
    return Sharded(model, dist.group.WORLD, 1, precision)


def zero_2(model: nn.Module, precision: Precision) -> DataParallel:
    return Sharded(model, dist.group.WORLD, 2, precision)


def zero_3(model: nn.Module, precision: Precision) -> DataParallel:
    return FullySharded(model, dist.group.WORLD, precision)


def two_axes(model: nn.Module, precision: Precision) -> DataParallel:
    """Sharded on one axis, and whole on the other, which has one rank."""
    mesh = Mesh({"dp_shard": dist.get_world_size(), "tp": 1})
    spec = Spec({"tp": 0})
    placed = {name: Placement.of(x.shape, spec, mesh, dist.get_rank()) for name, x in model.named_parameters()}
    return OnMesh([Along(zero_3(model, precision), ("dp_shard",))], placed, Groups(dist.group.WORLD, mesh))


def measured(make: Make, precision: Precision) -> History:
    """Linear layers and SGD with momentum, which keeps one number for each that it updates, and nothing else."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(precision.master)
    form = make(model, precision)
    optimizer = torch.optim.SGD([part.master for part in form.parts], lr=0.1, momentum=0.9, foreach=False)
    return measured_step(model, form, optimizer, lambda _: model(torch.ones(2, WIDTH, dtype=precision.compute)).sum())


def on_rank_0(clusters: Callable[..., Cluster], make: Make, precision: str) -> History:
    return clusters(4).run(measured, make, PRECISIONS[precision])[0]


@pytest.mark.parametrize(
    ("make", "precision", "expected"),
    [
        (replicas, "fp32", Breakdown(4 * ALL, 4 * ALL, 4 * ALL)),
        (replicas, "bf16", Breakdown(2 * ALL, 4 * ALL, 8 * ALL)),  # masters are copies, and count as state
        (zero_1, "fp32", Breakdown(4 * ALL, 4 * ALL, ALL)),
        (zero_1, "bf16", Breakdown(2 * ALL, 4 * ALL, 2 * ALL)),
        (zero_2, "fp32", Breakdown(4 * ALL, ALL, ALL)),
        (zero_2, "bf16", Breakdown(2 * ALL, ALL, 2 * ALL)),
        (zero_3, "fp32", Breakdown(ALL, ALL, ALL)),
        (zero_3, "bf16", Breakdown(ALL, ALL, ALL)),  # shards are parameters, whatever is computed in
        (two_axes, "fp32", Breakdown(ALL, ALL, ALL)),
        (two_axes, "bf16", Breakdown(ALL, ALL, ALL)),
    ],
)
def test_state_is_told_apart_in_every_form(clusters, make: Make, precision: str, expected: Breakdown) -> None:
    history = on_rank_0(clusters, make, precision)
    assert kept(history.at("step")) == expected
    assert [mark.label for mark in history.marks] == ["forward", "backward", "step"]


def test_state_is_there_before_the_step_that_is_measured(clusters) -> None:
    assert on_rank_0(clusters, replicas, "fp32").at("forward")[MemoryKind.OPTIMIZER] == 4 * ALL


def test_units_are_a_shard_or_whole(clusters) -> None:
    units = on_rank_0(clusters, zero_3, "bf16").units
    assert list(units) == ["0", "1", "2"]
    for sizes in units.values():
        assert set(sizes.tolist()) == {4 * EACH // 4, 2 * EACH}  # the shard in four bytes, or all in two


def test_replicas_have_no_units(clusters) -> None:
    assert on_rank_0(clusters, replicas, "fp32").units == {}


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["blocks.0.attention.query.weight", "blocks.0.norm.weight"], "blocks.0"),
        (["embedding.weight"], "embedding"),
        (["norm.weight", "head.weight", "head.bias"], "norm, head"),
        (["scale"], "model"),
    ],
)
def test_a_unit_is_called_like_what_its_parameters_share(names: list[str], name: str) -> None:
    unit = type("Unit", (), {"names": names})
    assert name_of(unit) == name

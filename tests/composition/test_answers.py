"""Answers for the back of an envelope say what the library does: its meshes, specs, recipes."""

import itertools
from collections.abc import Mapping

import pytest

from reference.composition.answers.folding import fold_the_experts_mesh
from reference.composition.answers.plan_bytes import what_a_plan_needs
from reference.composition.answers.whose_sums import batch_loss_and_gradient_groups, whose_gradients_add_up
from reference.errors import BadInput
from reference.memory import RECIPES, Stage, state_bytes
from reference.mesh import Mesh

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
SIZES = [dict(zip(AXES, sizes, strict=True)) for sizes in ((2, 1, 2, 2, 2), (1, 2, 3, 1, 2), (3, 2, 1, 2, 1))]


def replicated(sizes: Mapping[str, int]) -> dict[str, str]:
    """What the axes do to a norm."""
    return {axis: "split" if axis == "pp" else "replicated" for axis in sizes}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_add_up_along_the_batch_axes_and_those_that_are_partial(sizes: Mapping[str, int]) -> None:
    mesh, batch = Mesh(sizes), ("dp_replicate", "dp_shard", "cp")
    for tp, axes in (("split", batch), ("replicated", batch), ("partial", (*batch, "tp"))):
        found = whose_gradients_add_up(sizes, {**replicated(sizes), "tp": tp})
        assert found == [mesh.group_of(rank, *axes) for rank in mesh.ranks]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_table_at_both_ends_adds_up_there_alone(sizes: Mapping[str, int]) -> None:
    mesh, last = Mesh(sizes), sizes["pp"] - 1
    found = whose_gradients_add_up(sizes, {**replicated(sizes), "pp": "partial", "tp": "split"})
    for rank in mesh.ranks:
        at = mesh.coordinates(rank)
        everywhere = mesh.group_of(rank, "pp", "dp_replicate", "dp_shard", "cp")
        ends = tuple(other for other in everywhere if mesh.coordinates(other)["pp"] in (0, last))
        assert found[rank] == (ends if at["pp"] in (0, last) else ())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_groups_of_a_batch_are_those_of_the_mesh(sizes: Mapping[str, int]) -> None:
    mesh = Mesh(sizes)
    for rank in mesh.ranks:
        windows, losses, gradients = batch_loss_and_gradient_groups(rank, sizes)
        assert windows == mesh.group_of(rank, "dp_replicate", "dp_shard")
        assert losses == mesh.group_of(rank, "pp", "dp_replicate", "dp_shard", "cp")
        assert gradients == mesh.group_of(rank, "dp_replicate", "dp_shard", "cp")


@pytest.mark.parametrize(("sizes", "ep", "etp"), list(itertools.product(SIZES, (1, 2, 3, 4), (1, 2))), ids=str)
def test_the_mesh_of_experts_is_a_view(sizes: Mapping[str, int], ep: int, etp: int) -> None:
    mesh, inside = Mesh(sizes), ("dp_shard", "cp", "tp")
    try:
        view = mesh.view({"edp": mesh.size(*inside) // (ep * etp), "ep": ep, "etp": etp}, of=inside)
    except BadInput:
        assert {fold_the_experts_mesh(rank, sizes, ep, etp) for rank in mesh.ranks} == {None}
        return
    for rank in mesh.ranks:
        at, *groups = fold_the_experts_mesh(rank, sizes, ep, etp)
        assert at == tuple(view.coordinates(rank).values())
        assert groups == [view.group_of(rank, axis) for axis in ("edp", "ep", "etp")]


@pytest.mark.parametrize("stage", range(4))
def test_a_plan_needs_what_its_recipe_says_for_both_parts(stage: int) -> None:
    axes = {"pp": 2, "dp_replicate": 3, "dp_shard": 3, "cp": 2, "tp": 2, "ep": 4, "etp": 1}
    found = what_a_plan_needs(6, 70, 4, 22, **axes, stage=stage, micro_batches=1, tokens=8, activation=5)
    recipe, zero = RECIPES["mixed Adam"], tuple(Stage)[stage]
    kept = state_bytes(3 * 35, recipe, zero, 6) + state_bytes(3 * 22, recipe, zero, 3)
    assert found == (kept.parameters, kept.gradients, kept.optimizer, 3 * 2 * 5)

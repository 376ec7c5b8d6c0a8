"""A mesh arranges ranks as torch's own does, and says clearly what it hasn't got."""

import itertools
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.mesh import Mesh

CUBE = Mesh({"pipe": 2, "data": 2, "tensor": 2})
MESHES = (
    CUBE,
    Mesh({"data": 1}),
    Mesh({"data": 7}),
    Mesh({"pipe": 4, "data": 3, "tensor": 2}),
    Mesh({"pipe": 3, "replicate": 2, "shard": 1, "tensor": 5}),
    Mesh({"tensor": 2, "pipe": 3}),
)


def numbered(mesh: Mesh) -> torch.Tensor:
    """Ranks as torch numbers the elements of a tensor."""
    return torch.arange(len(mesh.ranks)).view(mesh.sizes)


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_a_rank_stands_where_a_tensor_has_its_number(mesh: Mesh) -> None:
    box = numbered(mesh)
    for rank in mesh.ranks:
        here = mesh.coordinates(rank)
        assert tuple(here) == mesh.names
        assert box[tuple(here.values())] == rank
        assert mesh.rank(**here) == rank
        assert mesh.rank(**dict(reversed(here.items()))) == rank


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_groups_are_lines_and_planes_of_the_tensor(mesh: Mesh) -> None:
    """Along any of the axes, named in any order."""
    for count in range(len(mesh.names) + 1):
        for axes in itertools.permutations(mesh.names, count):
            inside = sorted(mesh.names.index(name) for name in axes)
            outside = [axis for axis in range(len(mesh.names)) if axis not in inside]
            rows = numbered(mesh).permute(*outside, *inside).reshape(-1, mesh.size(*axes))
            assert mesh.groups(*axes) == [tuple(row) for row in rows.tolist()]


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_the_group_of_a_rank_is_the_one_of_all_groups_that_has_it(mesh: Mesh) -> None:
    for axes in itertools.chain.from_iterable(itertools.combinations(mesh.names, n) for n in (0, 1, 2)):
        for group in mesh.groups(*axes):
            assert {mesh.group_of(rank, *axes) for rank in group} == {group}


def test_the_last_axis_has_neighbours_and_the_first_stands_far_apart() -> None:
    assert CUBE.groups("tensor") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert CUBE.groups("data") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert CUBE.groups("pipe") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert CUBE.groups("pipe", "data") == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_two_ranks_stand_apart_along_the_axes_on_which_they_differ() -> None:
    assert CUBE.apart(0, 1) == ("tensor",)
    assert CUBE.apart(1, 7) == ("pipe", "data")
    assert CUBE.apart(3, 3) == ()


def test_meshes_are_equal_if_their_axes_are_in_order_too() -> None:
    assert Mesh({"pipe": 2, "data": 2}) == Mesh({"pipe": 2, "data": 2})
    assert Mesh({"pipe": 2, "data": 2}) != Mesh({"data": 2, "pipe": 2})
    assert len({CUBE, pickle.loads(pickle.dumps(CUBE))}) == 1


def test_llamas_sixteen_thousand_ranks_have_their_groups() -> None:
    """In the order of section 3.3.2 of "The Llama 3 Herd of Models": replicas stand farthest apart."""
    mesh = Mesh({"data": 128, "pipe": 16, "tensor": 8})
    groups = mesh.groups("data")
    assert len(groups) == 128 and groups[-1] == mesh.group_of(16_383, "data") == tuple(range(127, 16_384, 128))
    assert mesh.group_of(16_383, "pipe") == tuple(range(16_263, 16_384, 8))


def torchs_groups(mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """The ranks that this one is together with, as torch's own mesh says it."""
    theirs = dist.init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)
    return {name: tuple(dist.get_process_group_ranks(theirs.get_group(name))) for name in mesh.names}


def test_torchs_own_mesh_makes_the_same_groups(clusters: Callable[..., Cluster]) -> None:
    for mesh in (CUBE, Mesh({"tensor": 4, "pipe": 2})):
        for rank, theirs in enumerate(clusters(8).run(torchs_groups, mesh)):
            assert theirs == {name: mesh.group_of(rank, name) for name in mesh.names}


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Mesh({}), "at least one axis"),
        (lambda: Mesh({"data": 2, "tensor": 0}), "at least 1 rank, and tensor has 0"),
        (lambda: CUBE.coordinates(8), "ranks 0 to 7, and no rank 8"),
        (lambda: CUBE.coordinates(-1), "no rank -1"),
        (lambda: CUBE.rank(pipe=1, tensor=0), "where on data"),
        (lambda: CUBE.rank(pipe=1, data=2, tensor=0), "data has places 0 to 1, and no place 2"),
        (lambda: CUBE.rank(pipe=0, data=0, tensor=0, expert=0), "no axis 'expert': its axes are pipe, data, tensor"),
        (lambda: CUBE.groups("dp"), "no axis 'dp'"),
        (lambda: CUBE.groups("data", "data"), "named once, not as in data, data"),
        (lambda: CUBE.group_of(9, "data"), "no rank 9"),
        (lambda: CUBE.size("context"), "no axis 'context'"),
    ],
)
def test_what_a_mesh_has_not_is_refused_with_what_it_has(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ask()

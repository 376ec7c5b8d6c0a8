"""A mesh in pictures: every rank stands in its node, groups are distinct, and bytes have the colour of their axis."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from matplotlib.patches import PathPatch

from reference.cluster import Cluster
from reference.collectives import all_reduce
from reference.mesh import Mesh
from reference.trace import Trace
from visualizations import axes_traffic, mesh

from .reading import assert_readable, drawn

CUBE = Mesh({"pipe": 2, "data": 2, "tensor": 2})
MESHES = (
    (CUBE, 4),
    (Mesh({"data": 4}), 4),
    (Mesh({"data": 1}), 8),
    (Mesh({"tensor": 2, "data": 2, "pipe": 3}), 5),
    (Mesh({"data": 4, "tensor": 16}), 16),
    (Mesh({"pipe": 4, "data": 4, "tensor": 4}), 8),
    (Mesh({"pipe": 2, "replicate": 2, "shard": 4, "tensor": 4}), 8),
)


@pytest.mark.turns(3)
@pytest.mark.parametrize(("arranged", "ranks_per_node"), MESHES, ids=str)
def test_it_can_be_read(arranged: Mesh, ranks_per_node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = mesh.draw(arranged, ranks_per_node)
    assert_readable(picture, monkeypatch)
    words = [each for each, _, _ in drawn(picture, monkeypatch)]
    panels = max(1, sum(size > 1 for size in arranged.sizes))
    assert all(words.count(str(rank)) == panels for rank in arranged.ranks)


def test_lines_join_the_members_of_each_group() -> None:
    (axes,) = mesh.draw(CUBE, 4).axes
    ranks = {text.get_position(): int(text.get_text()) for text in axes.texts if text.get_text().isdigit()}
    paths = [patch.get_path().vertices for patch in axes.patches if type(patch) is PathPatch]
    joined = [(ranks[tuple(path[0])], ranks[tuple(path[-1])]) for path in paths]
    assert sorted(joined) == sorted(
        pair for axis in CUBE.names for group in CUBE.groups(axis) for pair in pairwise(group)
    )


def test_the_title_says_who_leaves_its_node() -> None:
    assert mesh.finding(CUBE, 2) == (
        "8 ranks in nodes of 2: tensor stays within a node, data and pipe go from node to node"
    )
    assert mesh.finding(CUBE, 4) == (
        "8 ranks in nodes of 4: tensor and data stay within a node, pipe goes from node to node"
    )
    assert mesh.finding(Mesh({"data": 1}), 8) == "1 rank: no rank talks beyond its node"
    assert mesh.finding(CUBE, 8) == "8 ranks: no rank talks beyond its node"
    assert mesh.finding(CUBE, 1) == "8 ranks in nodes of 1: every axis goes from node to node"


def test_a_group_that_lies_across_two_nodes_does_not_stay() -> None:
    three = Mesh({"data": 2, "tensor": 3})
    assert mesh.stays(three, "tensor", 3)
    assert not mesh.stays(three, "tensor", 4), "ranks 3, 4, 5 in nodes of four"


def test_every_axis_has_a_colour_of_its_own() -> None:
    four = Mesh({"pipe": 2, "replicate": 2, "shard": 4, "tensor": 4})
    assert len({mesh.colour_of(axis, four) for axis in four.names}) == 4
    assert mesh.colour_of("tensor", four) == mesh.colour_of("tensor", CUBE)


def test_shades_of_groups_grow_darker() -> None:
    lightness = [sum(int(mesh.shade("#0072B2", k, 4)[i : i + 2], 16) for i in (1, 3, 5)) for k in range(4)]
    assert lightness == sorted(lightness, reverse=True) and len(set(lightness)) == 4


def along_each(sizes: dict[str, int]) -> None:
    """Sum something along every axis: the more, the further inside."""
    arranged = Mesh({"pipe": 2, "data": 2, "tensor": 2})
    for axis, numel in sizes.items():
        for members in arranged.groups(axis):
            group = dist.new_group(list(members))
            if dist.get_rank() in members:
                all_reduce.ring(torch.ones(numel), group)


@pytest.fixture(scope="module")
def trace(clusters: Callable[..., Cluster]) -> Trace:
    return clusters(8).trace(along_each, {"pipe": 10, "data": 100, "tensor": 1000})[1]


def test_bytes_are_told_by_axis_and_by_what_leaves_a_node(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = axes_traffic.draw(trace, CUBE, 4)
    assert_readable(picture, monkeypatch)
    words = [each for each, _, _ in drawn(picture, monkeypatch)]
    assert "tensor: 32 KB, nothing between nodes" in words
    assert "pipe: 320 B, all of it between nodes" in words
    assert "size: logarithm of bytes     hatched: between nodes" in words
    assert repr(picture) == "<Picture: Of 35.5 KB that were sent: tensor 90%, data 9%, pipe 1%>"
    assert_readable(axes_traffic.draw(trace, CUBE, 2), monkeypatch)


def test_what_goes_around_a_corner_of_the_mesh_is_drawn_too(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = clusters(8).trace(lambda: all_reduce.ring(torch.ones(8), dist.group.WORLD))[1]
    picture = axes_traffic.draw(trace, CUBE, 4)
    assert_readable(picture, monkeypatch)
    assert [words for words, _, _ in drawn(picture, monkeypatch) if words.startswith("several axes: 224 B")]


def test_an_axis_of_nobody_is_left_out(clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    trace = clusters(8).trace(along_each, {"data": 100})[1]
    words = [each for each, _, _ in drawn(axes_traffic.draw(trace, CUBE, 4), monkeypatch)]
    assert not [each for each in words if each.startswith(("pipe", "tensor"))]

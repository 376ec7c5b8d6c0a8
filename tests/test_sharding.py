"""One spec says what a rank holds of a parameter, whose gradients are summed, and who counts it."""

from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.data_parallel import ParameterShard
from reference.mesh import Mesh
from reference.sharding import Placement, Slices, Spec, block_of, pieces


@st.composite
def blocks(draw: st.DrawFn) -> tuple[torch.Size, Slices]:
    """A parameter and a block of it, which may stick out, as padding does."""
    shape = torch.Size(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    begins = tuple(draw(st.integers(0, length + 1)) for length in shape)
    return shape, Slices(begins, tuple(draw(st.integers(1, 5)) for _ in shape))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[torch.Size, Slices, int, int]:
    """Elements [begin, end) of a block of a parameter."""
    shape, block = draw(blocks())
    begin, end = sorted(draw(st.lists(st.integers(0, block.numel), min_size=2, max_size=2)))
    return shape, block, begin, end


def numbered(shape: torch.Size) -> Tensor:
    """A tensor in which each element is another number, from 1 on."""
    return torch.arange(1, prod(shape) + 1).view(shape)


def test_as_in_the_picture() -> None:
    """Elements 2 to 9 of 3 rows and 4 columns: the end of a row, a row, the start of one."""
    shape = torch.Size([3, 4])
    found = pieces(torch.arange(2, 9), 2, Slices.of(shape), shape)
    assert [box for box, _ in found] == [Slices((0, 2), (1, 2)), Slices((1, 0), (1, 4)), Slices((2, 0), (1, 1))]
    assert [values.tolist() for _, values in found] == [[[2, 3]], [[4, 5, 6, 7]], [[8]]]


@given(ranges())
def test_boxes_say_where_each_element_is(drawn: tuple[torch.Size, Slices, int, int]) -> None:
    shape, block, begin, end = drawn
    x = numbered(shape)
    values = block.cut(x).flatten()[begin:end]
    found = pieces(values, begin, block, shape)
    assert all(torch.equal(box.within(x), inside) for box, inside in found)
    assert sorted(n for _, inside in found for n in inside.flatten().tolist()) == values[values > 0].tolist()


@given(ranges())
def test_boxes_are_few_and_not_empty(drawn: tuple[torch.Size, Slices, int, int]) -> None:
    shape, block, begin, end = drawn
    found = pieces(torch.zeros(end - begin), begin, block, shape)
    assert len(found) <= 2 * len(shape) - 1
    assert all(box.numel > 0 and tuple(inside.shape) == box.sizes for box, inside in found)


@given(ranges())
def test_what_is_written_into_the_boxes_is_written_into_the_values(drawn: tuple[torch.Size, Slices, int, int]) -> None:
    """Padding is not written to."""
    shape, block, begin, end = drawn
    x = numbered(shape)
    values = torch.zeros(end - begin, dtype=x.dtype)
    for box, inside in pieces(values, begin, block, shape):
        inside[...] = box.within(x)
    assert torch.equal(values, block.cut(x).flatten()[begin:end])


@given(blocks(), st.lists(st.integers(0, 625), max_size=4))
def test_pieces_of_a_block_are_the_block(drawn: tuple[torch.Size, Slices], cuts: list[int]) -> None:
    """However it is cut, each of its elements that is not padding is in one box of one piece."""
    shape, block = drawn
    seen = torch.zeros(shape, dtype=torch.int64)
    places = sorted({0, block.numel, *(place for place in cuts if place < block.numel)})
    for begin, end in pairwise(places):
        for box, _ in pieces(torch.zeros(end - begin), begin, block, shape):
            box.within(seen).add_(1)
    expected = torch.zeros_like(seen)
    block.within(expected).add_(1)
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("shape", [[], [5], [2, 3, 4], [0, 4]], ids=str)
def test_a_part_of_a_whole_parameter_is_one_piece(shape: list[int]) -> None:
    """Where no axis splits it the block is the parameter; the master may have its shape."""
    shape = torch.Size(shape)
    part = ParameterShard("it", shape, 0, shape.numel(), nn.Parameter(torch.rand(shape)))
    found = part.pieces(part.master.detach())
    assert [box for box, _ in found] == ([Slices.of(shape)] if shape.numel() else [])
    for _, values in found:
        assert values.data_ptr() == part.master.data_ptr()
        assert torch.equal(values.flatten(), part.master.detach().flatten())


MESH = Mesh({"dp_shard": 2, "ep": 3, "tp": 2})


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("shape", "split"),
    [
        ([7], {"ep": 0}),
        ([5, 4, 3], {"ep": 0, "tp": 2}),
        ([13, 2], {"ep": 0, "tp": 0}),  # two axes of one dim, the outer one first
        ([2, 3], {"ep": 0}),  # fewer rows than ranks
        ([4, 4], {"dp_shard": 1}),
        ([3], {}),
    ],
)
def test_blocks_of_all_ranks_tile_a_parameter(shape: list[int], split: dict[str, int], padded: bool) -> None:
    """Each element is in one block; as many ranks hold it as there are along the axes that do not split it."""
    shape, spec = torch.Size(shape), Spec(split, padded=padded)
    owners = torch.zeros(shape)
    for rank in MESH.ranks:
        block_of(shape, spec, MESH, rank).within(owners).add_(1)
    assert (owners == len(MESH.ranks) // MESH.size(*split)).all()


def test_only_what_is_padded_sticks_out() -> None:
    x = torch.arange(1, 8).float()
    of = [Placement.of(x.shape, Spec({"ep": 0}), MESH, rank).cut(x).tolist() for rank in (0, 2, 4)]
    assert of == [[1, 2, 3], [4, 5, 6], [7]]
    padded = [Placement.of(x.shape, Spec({"ep": 0}, padded=True), MESH, rank).cut(x).tolist() for rank in (0, 2, 4)]
    assert padded == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]

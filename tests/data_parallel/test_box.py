"""What a rank holds of a matrix is a few boxes, which say of each of its elements where in the matrix it is."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.data_parallel import Part
from reference.data_parallel.box import Box, cut


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Box, Box]:
    """A matrix and a block of it, which may begin and end behind the last row, as padding does."""
    whole = Box(0, 0, draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    column = draw(st.integers(0, whole.columns - 1))
    columns = draw(st.integers(1, whole.columns - column))
    return whole, Box(draw(st.integers(0, 7)), column, draw(st.integers(1, 6)), columns)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Box, Box, int, int]:
    """Elements [begin, end) of a block of a matrix."""
    whole, block = draw(blocks())
    begin, end = sorted(draw(st.lists(st.integers(0, block.numel), min_size=2, max_size=2)))
    return whole, block, begin, end


def numbered(whole: Box) -> Tensor:
    """A matrix in which each element is another number, from 1 on."""
    return torch.arange(1, whole.numel + 1).view(whole.rows, whole.columns)


def of_block(block: Box, matrix: Tensor) -> Tensor:
    """What a block of it holds, flat. Behind the last row are zeros."""
    padding = matrix.new_zeros(block.row + block.rows, matrix.shape[1])
    return block.within(torch.cat([matrix, padding])).flatten()


def test_as_in_the_picture() -> None:
    """Elements 2 to 9 of 3 rows and 4 columns: the end of a row, a row, the start of one."""
    block = Box(0, 0, 3, 4)
    found = cut(torch.arange(2, 9), 2, block, block)
    assert [box for box, _ in found] == [Box(0, 2, 1, 2), Box(1, 0, 1, 4), Box(2, 0, 1, 1)]
    assert [values.tolist() for _, values in found] == [[[2, 3]], [[4, 5, 6, 7]], [[8]]]


@given(ranges())
def test_boxes_say_where_each_element_is(drawn: tuple[Box, Box, int, int]) -> None:
    whole, block, begin, end = drawn
    matrix = numbered(whole)
    values = of_block(block, matrix)[begin:end]
    found = cut(values, begin, block, whole)
    assert all(torch.equal(box.within(matrix), inside) for box, inside in found)
    assert sorted(n for _, inside in found for n in inside.flatten().tolist()) == values[values > 0].tolist()


@given(ranges())
def test_boxes_are_few_and_not_empty(drawn: tuple[Box, Box, int, int]) -> None:
    whole, block, begin, end = drawn
    found = cut(torch.zeros(end - begin), begin, block, whole)
    assert len(found) <= 3
    assert all(box.numel > 0 and inside.shape == (box.rows, box.columns) for box, inside in found)


@given(ranges())
def test_what_is_written_into_the_boxes_is_written_into_the_values(drawn: tuple[Box, Box, int, int]) -> None:
    """Padding is not written to."""
    whole, block, begin, end = drawn
    matrix = numbered(whole)
    values = torch.zeros(end - begin, dtype=matrix.dtype)
    for box, inside in cut(values, begin, block, whole):
        inside[:] = box.within(matrix)
    assert torch.equal(values, of_block(block, matrix)[begin:end])


@given(blocks(), st.lists(st.integers(0, 36), max_size=4))
def test_pieces_of_a_block_are_the_block(drawn: tuple[Box, Box], cuts: list[int]) -> None:
    """However it is cut, each of its elements that is not padding is in one box of one piece."""
    whole, block = drawn
    seen = torch.zeros(whole.rows, whole.columns, dtype=torch.int64)
    places = sorted({0, block.numel, *(place for place in cuts if place < block.numel)})
    for begin, end in pairwise(places):
        for box, _ in cut(torch.zeros(end - begin), begin, block, whole):
            box.within(seen)[:] += 1
    expected = torch.zeros_like(seen)
    block.within(expected)[:] = 1
    assert torch.equal(seen, expected)


@pytest.mark.parametrize(
    ("shape", "box"),
    [([], Box(0, 0, 1, 1)), ([5], Box(0, 0, 5, 1)), ([2, 3, 4], Box(0, 0, 2, 12)), ([0, 4], Box(0, 0, 0, 0))],
    ids=str,
)
def test_any_parameter_is_a_matrix(shape: list[int], box: Box) -> None:
    assert Box.of(torch.Size(shape)) == box
    if box.numel:
        x = torch.arange(box.numel).view(shape)
        assert torch.equal(box.within(x).flatten(), x.flatten())


@pytest.mark.parametrize("shape", [[], [5], [2, 3, 4]], ids=str)
def test_a_part_of_a_whole_parameter_is_one_piece(shape: list[int]) -> None:
    """Without tensor parallelism the block is the parameter; the master may have its shape."""
    shape = torch.Size(shape)
    part = Part("it", shape, 0, shape.numel(), nn.Parameter(torch.rand(shape)))
    ((box, values),) = part.pieces(part.master.detach())
    assert box == Box.of(shape)
    assert values.data_ptr() == part.master.data_ptr()
    assert torch.equal(values.flatten(), part.master.detach().flatten())

"""Tensors side by side, cut into equal shards: nothing is lost, nothing is there twice, nothing is too long."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.data_parallel.flat_layout import FlatLayout, Piece

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(torch.Size), min_size=1, max_size=6).map(tuple)
counts = st.integers(1, 8)


def numbered(layout: FlatLayout) -> list[torch.Tensor]:
    """Tensors of the layout's shapes, in which each element is another number, from 1 on."""
    numbers = torch.arange(1, layout.starts[-1] + 1)
    return [numbers[layout.starts[i] : layout.starts[i + 1]].view(shape) for i, shape in enumerate(layout.shapes)]


def test_as_in_the_picture() -> None:
    """13 elements and 3 of padding on four shards; the second one has the end of `a` and the beginning of `b`."""
    layout = FlatLayout((torch.Size([5]), torch.Size([8])), shards=4)
    assert (layout.numel, layout.shard) == (16, 4)
    assert layout.pieces(1) == [Piece(0, 4, 5, at=0), Piece(1, 0, 3, at=1)]
    assert layout.pieces(3) == [Piece(1, 7, 8, at=0)]


@given(shapes, counts)
def test_padding_is_less_than_a_shard_each(shapes: tuple[torch.Size, ...], n: int) -> None:
    layout = FlatLayout(shapes, n)
    elements = sum(shape.numel() for shape in shapes)
    assert layout.numel == n * layout.shard
    assert 0 <= layout.numel - elements < n


@given(shapes, counts)
def test_views_are_the_tensors(shapes: tuple[torch.Size, ...], n: int) -> None:
    layout = FlatLayout(shapes, n)
    tensors = numbered(layout)
    flat = layout.pack(tensors)
    assert flat.numel() == layout.numel
    assert all(map(torch.equal, layout.views(flat), tensors))
    assert not flat[layout.starts[-1] :].any()
    layout.views(flat)[0].zero_()
    assert not flat[: layout.starts[1]].any()  # views, not copies


@given(shapes, counts)
def test_shards_are_the_flat_tensor(shapes: tuple[torch.Size, ...], n: int) -> None:
    layout = FlatLayout(shapes, n)
    flat = layout.pack(numbered(layout))
    assert torch.equal(torch.cat([layout.shard_of(flat, rank) for rank in range(n)]), flat)


@given(shapes, counts)
def test_every_element_is_in_one_piece_of_one_rank(shapes: tuple[torch.Size, ...], n: int) -> None:
    """A rank that follows its pieces writes each tensor's elements where the others would look for them."""
    layout = FlatLayout(shapes, n)
    tensors = numbered(layout)
    flat, written = layout.pack(tensors), torch.zeros(layout.numel, dtype=torch.int64)
    for rank in range(n):
        shard = layout.shard_of(written, rank)
        for piece in layout.pieces(rank):
            piece.within(shard).add_(tensors[piece.index].flatten()[piece.begin : piece.end])
    assert torch.equal(written, flat)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_scalar_and_nothing(shards: int) -> None:
    layout = FlatLayout((torch.Size([]), torch.Size([0, 4])), shards)
    assert layout.numel == shards
    assert layout.views(layout.pack([torch.tensor(7.0), torch.empty(0, 4)]))[0] == 7.0

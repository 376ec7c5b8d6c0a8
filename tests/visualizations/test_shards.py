"""Where the cuts go."""

import pytest

from visualizations.shards import SHADES, draw, finding, label_of

TENSORS = {"a": 5, "b": 6}
SHARDS = [[(0, 0, 4)], [(0, 4, 5), (1, 0, 3)], [(1, 3, 6)]]  # of 4 elements, and one of padding


def test_the_title_counts_the_tensors_that_are_cut():
    assert finding(TENSORS, SHARDS) == "Of 2 tensors, 2 belong to more than one rank"
    assert finding(TENSORS, [[(0, 0, 5)], [(1, 0, 5)], [(1, 5, 6)]]) == "Of 2 tensors, 1 belongs to more than one rank"


def test_a_box_is_as_wide_as_its_piece_and_padding_fills_the_line():
    boxes = draw(TENSORS, SHARDS).axes[0].patches
    widths = [box.get_width() / boxes[0].get_width() for box in boxes]
    assert widths == pytest.approx([1, 1 / 4, 3 / 4, 3 / 4, 1 / 4])
    assert [box.get_hatch() for box in boxes] == [None] * 4 + ["////"]


def test_neighbours_differ_and_a_tensor_keeps_its_shade_in_the_next_line():
    faces = [box.get_facecolor() for box in draw(TENSORS, SHARDS).axes[0].patches]
    assert faces[0] == faces[1] != faces[2] == faces[3]
    assert len(SHADES) == 2


@pytest.mark.parametrize(
    ("begin", "end", "letters", "label"),
    [(0, 9, 10, "name"), (0, 5, 10, "name …"), (5, 9, 10, "… name"), (2, 5, 10, "… name …"), (2, 5, 7, "name")],
)
def test_an_ellipsis_says_that_it_goes_on(begin: int, end: int, letters: int, label: str):
    assert label_of("name", begin, end, 9, letters) == label
    assert label_of("name", begin, end, 9, 3) == ""

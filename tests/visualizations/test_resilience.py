"""Placements, recoveries and goodput as measured: what is drawn is what was given, and can be read."""

from dataclasses import replace

import pytest

from reference.errors import BadInput
from reference.planning.goodput import goodput
from reference.resilience.lab.history import DiaryEntry, DiaryMark, told
from reference.resilience.lab.measured_goodput import MeasuredGoodput, costs
from reference.resilience.placement import grouped, ring, share_survived
from visualizations import copies, goodput_measured, recovery

from .reading import assert_readable, drawn

BOTH = {"in groups": grouped(8, 2), "in a ring": ring(8, 2)}


def history(ranks: int = 4):
    """Two steps, a save, a step that is lost with rank 1, and all of that once more."""
    before = (
        (0.0, DiaryMark.RESUMED, 0),
        (0.5, DiaryMark.STEP, 1),
        (1.0, DiaryMark.STEP, 2),
        (1.3, DiaryMark.SAVE, 2),
        (1.8, DiaryMark.STEP, 3),
    )
    after = (3.0, DiaryMark.RESUMED, 2), (3.5, DiaryMark.STEP, 3), (4.0, DiaryMark.STEP, 4), (4.3, DiaryMark.SAVE, 4)
    words = (*before, *after)
    return told([DiaryEntry(at, rank, mark, step) for rank in range(ranks) for at, mark, step in words], [(2.0, 1)])


ROW = MeasuredGoodput("from disk", 10, 0.1, 0.05, 0.5, 3.0, 8, 40.0, 0.72, 0.05, 0.1)
ROWS = [replace(ROW, every=every, useful=u) for every, u in ((1, 0.5), (5, 0.75), (20, 0.6), (100, 0.3))]
ELASTIC = replace(ROW, way="elastic", every=1, checkpoint=0.0, useful=0.93)

PICTURES = {
    "placements": lambda: copies.draw(BOTH, lost=(3, 4)),
    "nothing lost": lambda: copies.draw(BOTH),
    "all states of a group lost": lambda: copies.draw({"groups of three": grouped(12, 3)}, lost=(3, 4, 5)),
    "16 nodes": lambda: copies.draw({"pairs": grouped(16, 2)}, lost=(0, 1, 5)),
    "over losses": lambda: copies.over_losses({"pairs": grouped(12, 2), "a ring": ring(12, 2)}, 5),
    "recovery": lambda: recovery.draw(history()),
    "a part of it": lambda: recovery.draw(history(), between=(0.4, 2.0)),
    "16 ranks": lambda: recovery.draw(history(16)),
    "goodput": lambda: goodput_measured.draw([*ROWS, ELASTIC]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_can_be_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert_readable(PICTURES[name](), monkeypatch)


def test_what_is_lost_is_said() -> None:
    assert "in groups: all is left; in a ring: state 3 is gone" in repr(PICTURES["placements"]())
    assert "states 3, 4, 5 are gone" in repr(PICTURES["all states of a group lost"]())


@pytest.mark.parametrize("lost", [(), (0, 1), (3, 4), (7, 0)])
def test_a_state_is_gone_where_all_who_held_it_are(lost: tuple[int, ...]) -> None:
    for placement in BOTH.values():
        held = {owner for node in {*range(8)} - {*lost} for owner in copies.held_by(placement, node)}
        assert copies.gone(placement, lost) == sorted({*range(8)} - held)


def test_shares_are_counted() -> None:
    line = PICTURES["over losses"]().axes[0].lines[1]
    assert line.get_ydata() == pytest.approx([share_survived(ring(12, 2), k) for k in range(1, 6)])


def test_each_stretch_is_a_box_and_each_death_a_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = PICTURES["recovery"]()
    boxes = sum(len(each.get_paths()) for each in picture.axes[0].collections)
    assert boxes == len(history().stretches)
    [crosses] = [line for line in picture.axes[0].lines if line.get_marker() == "X"]
    assert crosses.get_xydata().tolist() == [[2.0, 1.0]]
    assert {"1", "2", "3", "4"} <= {words for words, _, _ in drawn(picture, monkeypatch)}


def test_the_title_adds_up() -> None:
    assert "One death in 4.3 s: 47% useful, 14% for checkpoints, 16% lost work, 23% recovery" in repr(
        PICTURES["recovery"]()
    )


def test_the_line_is_the_formula_and_dots_are_measured() -> None:
    lines = {line.get_label(): line for line in PICTURES["goodput"]().axes[0].lines}
    x, y = lines["formula, with mean costs"].get_xydata().T
    assert y == pytest.approx(goodput(costs(ROWS), 1, x).useful)
    intervals, useful = lines["from disk, measured"].get_xydata().T
    assert intervals == pytest.approx([row.interval for row in ROWS])
    assert useful == pytest.approx([row.useful for row in ROWS])
    _, own = lines["formula, with the costs of this run"].get_xydata().T
    assert own == pytest.approx([float(goodput(costs([row]), 1, row.interval).useful) for row in ROWS])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: copies.draw({}), "placements must be at least 1"),
        (lambda: copies.draw(BOTH, lost=(8,)), "lost ones among them"),
        (lambda: copies.over_losses({"pairs": grouped(40, 2)}, 12), "counted one by one"),
        (lambda: recovery.draw(history(), between=(9.0, 10.0)), "nothing happened from 9 to 10 s"),
        (lambda: goodput_measured.draw([ROW]), "two intervals or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wrong()

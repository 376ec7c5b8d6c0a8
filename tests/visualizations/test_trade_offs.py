"""Bars, curves and dots of PTD-P: they say what the formulas say."""

import pytest

from reference.composition.lab.published import FIGURE_13, FIGURES_14_AND_15, SELENE, TABLE_1
from reference.composition.ptd_p import Split, batch_seconds
from visualizations import trade_offs

from .reading import assert_readable, drawn

SPLITS = [Split(64 // t, t, 1, 32) for t in (2, 4, 8, 16, 32, 64)]


def test_bars_end_where_the_formula_does(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = trade_offs.seconds(FIGURE_13, SPLITS, SELENE)
    assert_readable(picture, monkeypatch)
    [axes] = picture.axes
    ends: dict[float, float] = {}
    for bar in axes.patches:
        ends[round(bar.get_y(), 3)] = bar.get_x() + bar.get_width()
    assert list(ends.values()) == pytest.approx([batch_seconds(FIGURE_13, split, SELENE) for split in SPLITS])


def test_the_title_names_the_fastest_that_fits() -> None:
    assert str(SPLITS[2]) in repr(trade_offs.seconds(FIGURE_13, SPLITS, SELENE))
    small = [Split(1, 1, 64, 128), Split(2, 1, 32, 128)]
    assert str(small[1]) in repr(trade_offs.seconds(FIGURES_14_AND_15, small, SELENE)), "one GPU has no room for it"
    assert "None of these fits" in repr(trade_offs.seconds(FIGURE_13, [Split(1, 2, 32, 32)], SELENE))


def test_what_does_not_fit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = trade_offs.seconds(FIGURES_14_AND_15, [Split(1, 1, 64, 128), Split(2, 1, 32, 128)], SELENE)
    assert_readable(picture, monkeypatch)
    assert any("needs 95.3 GB" in words for words, _, _ in drawn(picture, monkeypatch))


def test_every_curve_marks_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = {f"B = {batch}": [Split(8, 8, 1, batch, b) for b in (1, 2, 4, 8, 16)] for batch in (32, 128, 512)}
    picture = trade_offs.micro_batches(TABLE_1[0].model, curves, SELENE, title="The more windows, the larger")
    assert_readable(picture, monkeypatch)
    words = [each for each, _, _ in drawn(picture, monkeypatch)]
    assert {"b = 1", "b = 2", "b = 4"} <= set(words)


def test_measurements_are_dots_and_formulas_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = trade_offs.published(TABLE_1, SELENE, title="Ten models")
    assert_readable(picture, monkeypatch)
    line, dots = picture.axes[0].lines
    assert line.get_linestyle() == "-" and dots.get_marker() == "o"
    assert dots.get_ydata().tolist() == [137, 138, 142, 135, 138, 140, 148, 155, 163, 163]

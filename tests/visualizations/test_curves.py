"""Lines and dots stand where their numbers are, and every word can be read."""

import pytest

from visualizations import curves
from visualizations.curves import Scale
from visualizations.style import Colour, bytes_text

from .reading import assert_readable, drawn, struck_through

FORMULA = {"squares": [(2.0**k, 4.0**k) for k in range(5, 15)], "doubles": [(2.0**k, 2.0 * 2**k) for k in range(5, 15)]}
SEEN = {"squares": [(64, 4200.0), (512, 260_000.0)]}


def picture(**options) -> curves.Picture:
    return curves.draw(FORMULA, **{"title": "Squares win", "x": "tokens", "y": "memory"} | options)


@pytest.mark.turns(3)
@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("dots", [None, SEEN])
@pytest.mark.parametrize("limit", [None, ("a device of 1 MB", 1e6)])
def test_every_chart_can_be_read(monkeypatch, scale, dots, limit):
    note = "lines: formula   dots: measured" if dots else ""
    chart = picture(scale=scale, dots=dots, limit=limit, text=bytes_text, note=note)
    assert_readable(chart, monkeypatch)
    assert not struck_through(chart, monkeypatch)


@pytest.mark.parametrize("scale", Scale)
def test_a_level_just_below_a_line_has_its_name_free_of_it(monkeypatch, scale):
    """And what lines and dots are stays free of a line that begins at the top."""
    lines = {"falls": [(m, 400 / m) for m in (1, 2, 4, 8)], "stays": [(m, 85.0) for m in (1, 2, 4, 8)]}
    words = {"title": "It falls", "x": "micro-batches", "y": "memory (GB)", "note": "lines: formula   dots: measured"}
    chart = curves.draw(lines, dots=lines, limit=("a GPU", 80), scale=scale, **words)
    assert_readable(chart, monkeypatch)
    assert not struck_through(chart, monkeypatch)
    assert "a GPU: 80" in [text.get_text() for text in chart.axes[0].get_legend().get_texts()]


@pytest.mark.parametrize(("low", "high"), [(420, 980), (30, 70), (280, 5000), (2, 900), (1e-6, 3.0)])
def test_the_amounts_of_a_log_scale_can_be_told(monkeypatch, low, high):
    """However few powers of ten they reach over."""
    points = {"grows": [(1, low), (2, (low * high) ** 0.5), (4, high)]}
    chart = curves.draw(points, title="It grows", x="windows", y="time (ms)", scale=Scale.LOG)
    assert_readable(chart, monkeypatch)
    words = [words for words, _, box in drawn(chart, monkeypatch) if box.x1 < 100]
    assert len([each for each in words if each.replace(".", "").replace("e-", "").isdigit()]) >= 3


def test_lines_and_dots_are_where_the_numbers_are():
    lines = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in picture(dots=SEEN).axes[0].lines]
    for points in (*FORMULA.values(), *SEEN.values()):
        assert tuple(map(list, zip(*points, strict=True))) in lines


def test_a_formula_and_its_measurements_have_one_colour():
    colours = [line.get_color() for line in picture(dots=SEEN).axes[0].lines]
    assert colours[0] == colours[1] == Colour.FORWARD
    assert colours[2] != colours[0]


def test_numbers_of_bytes_are_written_as_bytes(monkeypatch):
    words = [words for words, _, _ in drawn(picture(scale=Scale.LOG, text=bytes_text), monkeypatch)]
    assert "1 MB" in words
    assert "1,024" in words


def test_powers_below_one_are_written_with_their_digits(monkeypatch):
    halves = {"inverse": [(2.0**k, 2.0**-k) for k in range(-3, 4)]}
    chart = curves.draw(halves, title="Half of it", x="share", y="time", scale=Scale.LOG)
    words = [words for words, _, _ in drawn(chart, monkeypatch)]
    assert {"0.25", "0.5", "1", "4"} <= set(words)
    assert "0" not in words


@pytest.mark.parametrize("ends", [(1, 2.0**30), (1.1e6, 1.9e6), (3, 5), (2.0**-20, 2.0**20)], ids=str)
def test_sizes_have_marks_that_can_be_read(monkeypatch, ends):
    chart = curves.draw({"a line": [(x, 1.0 + at) for at, x in enumerate(ends)]}, title="", x="", y="", scale=Scale.LOG)
    assert_readable(chart, monkeypatch)
    low, high = chart.axes[0].get_xlim()
    assert sum(low <= tick <= high for tick in chart.axes[0].get_xticks()) >= 2


def test_a_line_of_one_point_is_seen():
    chart = curves.draw({"once": [(1, 5.0)]}, title="", x="", y="")
    assert chart.axes[0].lines[0].get_marker() == "o"


def test_each_name_is_in_the_legend_also_one_that_begins_with_an_underscore():
    chart = curves.draw({"_mine": [(1, 1), (2, 3)]}, title="", x="", y="", dots={"_measured": [(1, 2)]})
    assert [text.get_text() for text in chart.axes[0].get_legend().get_texts()] == ["_mine", "_measured"]

"""Lines and dots stand where their numbers are, and every word can be read."""

import pytest

from visualizations import curves
from visualizations.curves import Scale
from visualizations.style import Colour, bytes_text

from .reading import assert_readable, drawn

FORMULA = {"squares": [(2.0**k, 4.0**k) for k in range(5, 15)], "doubles": [(2.0**k, 2.0 * 2**k) for k in range(5, 15)]}
SEEN = {"squares": [(64, 4200.0), (512, 260_000.0)]}


def picture(**options) -> curves.Picture:
    return curves.draw(FORMULA, **{"title": "Squares win", "x": "tokens", "y": "memory"} | options)


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("dots", [None, SEEN])
@pytest.mark.parametrize("limit", [None, ("a device of 1 MB", 1e6)])
def test_every_chart_can_be_read(monkeypatch, scale, dots, limit):
    note = "lines: formula   dots: measured" if dots else ""
    assert_readable(picture(scale=scale, dots=dots, limit=limit, text=bytes_text, note=note), monkeypatch)


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

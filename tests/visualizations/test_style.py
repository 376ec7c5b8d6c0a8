"""Numbers as a reader wants them, and pictures that show themselves."""

import base64
import pkgutil
import subprocess
import sys
from itertools import pairwise

import pytest

import visualizations
from visualizations import style


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 KB"), (1536, "1.54 KB"), (65536, "65.5 KB"), (999_600, "1 MB"),
     (25e6, "25 MB"), (1.5e9, "1.5 GB"), (2e12, "2 TB")],
)  # fmt: skip
def test_bytes(size, text):
    assert style.bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.9e-6, "1.9 µs"), (2.46e-3, "2.46 ms"), (0.9999, "1 s"), (400, "400 s"), (3e-9, "3 ns")],
)
def test_seconds(seconds, text):
    assert style.seconds_text(seconds) == text


def test_times_have_no_exponent():
    assert style.seconds_text(1e-14) == "0.00001 ns" and style.seconds_text(12_828) == "12828 s"


@pytest.mark.parametrize("letter", ["W", "m", "i"])
def test_no_title_is_cut(letter):
    words = " ".join([letter * 7] * 24)
    picture, _ = style.canvas(1.0, words)
    assert picture._suptitle.get_window_extent().x1 <= style.WIDTH * style.DPI
    assert " ".join(picture.get_suptitle().split()) == words


def test_a_saved_picture_is_the_one_that_notebooks_show(tmp_path):
    picture, _ = style.canvas(1.0, "A finding")
    picture.save(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes() == picture.png()


def test_a_picture_shows_itself_once_sharp_and_at_its_width():
    picture, _ = style.canvas(1.0, "A finding")
    data, metadata = picture._repr_mimebundle_()
    assert data["text/plain"] == "<Picture: A finding>"
    png = base64.b64decode(data["image/png"])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = int.from_bytes(png[16:20], "big")
    assert metadata["image/png"]["width"] == 800 and pixels == 1600


def test_long_titles_are_wrapped_into_even_lines():
    picture, _ = style.canvas(1.0, "word " * 30)
    lines = picture.get_suptitle().splitlines()
    assert len(lines) == 2 and abs(len(lines[0]) - len(lines[1])) < 12


def test_nothing_imports_pyplot():
    modules = [f"visualizations.{module.name}" for module in pkgutil.iter_modules(visualizations.__path__)]
    program = f"import sys, {', '.join(modules)}; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_lines_of_a_chart_differ_in_dash_and_marker_too():
    assert len({str(dash) for _, dash, _ in style.LINES}) == len({m for _, _, m in style.LINES}) == len(style.LINES)


def test_meanings_are_told_apart_in_greyscale():
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    lanes = [grey(c) for c in (style.Colour.IDLE, style.Colour.COMMUNICATION, style.Colour.FORWARD)]
    lanes.append(grey(style.Colour.WEIGHT_GRADIENT))
    assert all(a - b > 30 for a, b in pairwise(lanes))

"""Reads a picture as a person would: every text that was really drawn, and where."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from visualizations.style import DPI, Picture

SMALLEST = 9.0  # points


def drawn(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, Bbox]]:
    """Each text of the picture with its size in points and its box in dots, 100 to an inch."""
    found = []
    draw_text = RendererAgg.draw_text

    def note(renderer, gc, x, y, s, prop, angle, ismath=False, mtext: Text | None = None):
        if s.strip() and mtext is not None:
            box = Text.get_window_extent(mtext, renderer)  # without the arrow of an annotation
            found.append((s, mtext.get_fontsize(), Bbox(box.get_points() * DPI / renderer.dpi)))
        draw_text(renderer, gc, x, y, s, prop, angle, ismath, mtext)

    with monkeypatch.context() as patch:
        patch.setattr(RendererAgg, "draw_text", note)
        picture.pixels()
    return found


def struck_through(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words through which a line of a chart goes."""
    texts = drawn(picture, monkeypatch)
    shown = [line for axes in picture.axes for line in axes.lines if line.get_visible()]
    paths = [line.get_transform().transform_path(line.get_path()) for line in shown]
    return [words for words, _, box in texts if any(path.intersects_bbox(box, filled=False) for path in paths)]


def assert_readable(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is cut off, none lies on another, none is too small."""
    texts = drawn(picture, monkeypatch)
    width, height = picture.get_size_inches() * DPI
    assert texts
    for words, size, box in texts:
        assert size >= SMALLEST, words
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, f"{words!r} is cut off"
    names = [words for words, _, _ in texts]
    left, bottom, right, top = np.array([box.extents for _, _, box in texts]).T
    wide = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    high = np.minimum.outer(top, top) - np.maximum.outer(bottom, bottom)
    clashes = np.argwhere(np.triu(np.minimum(wide, high) > 2.5, k=1))
    assert not len(clashes), [(names[i], names[j]) for i, j in clashes]

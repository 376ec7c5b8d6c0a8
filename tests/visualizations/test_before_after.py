"""Panels share one scale, lose no peak, and can be read."""

import numpy as np
import pytest

from reference.memory.history import History, Mark
from visualizations import before_after

from .reading import assert_readable, drawn


def step(moments: int, most: float) -> History:
    """Rows of everything, growing and shrinking; `most` MB of activations."""
    shape = np.sin(np.linspace(0, np.pi, moments))
    usage = np.outer(shape, [0, 3, 0, most, 5]) * 1e6 + np.array([3, 0, 6, 0, 0]) * 1e6
    return History(usage.astype(np.int64), (Mark("forward", 0), Mark("step", moments // 2)))


@pytest.mark.parametrize("ways", [1, 2, 3, 4])
@pytest.mark.parametrize("limit", [None, ("our device", 32e6), ("a large device", 90e6)])
def test_every_comparison_can_be_read(monkeypatch, ways, limit):
    histories = {f"in {2**k} pieces": step(1000 * (k + 1), 40 / 2**k) for k in range(ways)}
    assert_readable(before_after.draw(histories, limit=limit), monkeypatch)


def test_panels_have_one_scale_and_say_their_peaks(monkeypatch):
    histories = {"before": step(1000, 40), "after": step(1000, 4)}
    picture = before_after.draw(histories)
    assert len({axes.get_ylim() for axes in picture.axes}) == 1
    words = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert [word for word in words if word in ("57 MB", "21 MB")] == ["57 MB", "21 MB"]
    assert repr(picture) == "<Picture: before 57 MB, after 21 MB>"


def test_no_peak_is_lost_where_moments_share_a_column():
    history = step(100_000, 40)
    history.usage[51_234, 3] += 10**9
    assert before_after.columns(history.usage).sum(axis=1).max() == history.peak
    few = history.usage[:10]
    assert (before_after.columns(few) == few).all()


def test_each_phase_has_its_name_or_its_first_letter(monkeypatch):
    short = History(step(100, 4).usage, (Mark("forward", 0), Mark("step", 98)))
    words = [words for words, _, _ in drawn(before_after.draw({"even": step(100, 4), "uneven": short}), monkeypatch)]
    assert [word for word in words if word in ("forward", "step", "f", "s")] == ["forward", "step", "forward", "s"]
    assert "operations, in the order in which they run; each panel has its own scale from left to right" in words

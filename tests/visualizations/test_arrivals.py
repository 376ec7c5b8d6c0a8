"""Late gradients: a box for each, as long as it was late, and a title that says how late."""

import pytest

from reference.decentralized.parameter_server import Arrival
from reference.errors import BadInput
from visualizations import arrivals

from .reading import assert_readable


def record(updates: int, workers: int) -> list[Arrival]:
    """Workers in turns, of which each reads when its last gradient was applied."""
    read, found = dict.fromkeys(range(1, workers + 1), 0), []
    for version in range(updates):
        worker = 1 + version % workers
        found.append(Arrival(worker, version // workers, read[worker], version))
        read[worker] = version + 1
    return found


def test_a_picture_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_readable(arrivals.draw(record(24, 3)), monkeypatch)
    assert_readable(arrivals.draw(record(60, 7), first=20, count=40), monkeypatch)


def test_each_box_is_as_long_as_its_gradient_was_late() -> None:
    axes = arrivals.draw(record(12, 3)).axes[0]
    boxes = [patch for patch in axes.patches if hasattr(patch, "get_width")]
    assert [round(box.get_width() + 0.16) for box in boxes] == [1, 2, *[3] * 10]
    assert [text.get_text() for text in axes.texts] == ["0", "1", *["2"] * 10]


def test_the_title_says_how_late_they_were() -> None:
    title = " ".join(arrivals.draw(record(12, 3)).get_suptitle().split())
    assert title == "12 gradients: in the mean 1.8 updates late, at most 2"


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(BadInput, match="the record has 12"):
        arrivals.draw(record(12, 3), first=12)
    with pytest.raises(BadInput, match="1 to 40 updates, not 41"):
        arrivals.draw(record(12, 3), count=41)

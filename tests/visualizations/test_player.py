"""Players: pictures on demand, and one picture where widgets do not work."""

import asyncio
import io

import numpy as np
import pytest
from PIL import Image

from reference.trace import Network
from tests.notebooks import outputs_of
from tests.trace import programs as p
from visualizations import player, timeline
from visualizations.live import RUN, VIEW
from visualizations.style import Picture

NETWORK = Network.uniform(alpha=1e-5, beta=1e9)


@pytest.fixture
def film():
    return player.timeline(p.trace(3, lambda rank: p.naive_all_reduce(rank, 100)).replay(NETWORK), frames=5)


def columns(png: bytes) -> np.ndarray:
    """How dark each column of a picture is."""
    return 255 - np.asarray(Image.open(io.BytesIO(png)).convert("L")).mean(0)


def test_the_slider_changes_picture_and_caption(film):
    _, slider, caption = film.widget.children
    slider.value = 4
    assert film.seen == film.frame(4)
    assert caption.value == "41.6 µs"


def test_it_begins_and_ends_with_the_whole(film):
    play, slider, caption = film.widget.children
    assert slider.value == slider.max == play.max == 5 and caption.value == player.WHOLE
    assert film.seen == film.still.png()
    slider.value = 0
    slider.value = 5
    assert film.seen == film.still.png()


def test_who_presses_play_at_the_end_sees_it_from_the_beginning(film):
    play, _, _ = film.widget.children
    play.playing = True
    assert play.value == 0


def test_the_future_is_covered_and_the_past_is_not(film):
    whole, half = columns(film.still.png()), columns(film.frame(2))
    left, right = (round(2 * x) for x in film.still.axes[0].get_window_extent().intervalx)
    middle = (left + right) // 2
    past, future = slice(left, middle - 4), slice(middle + 4, right)
    assert np.allclose(half[past], whole[past], atol=2)
    assert half[future].mean() < 0.5 * whole[future].mean()
    assert columns(film.frame(0))[left + 4 : right].mean() < 0.5 * whole[left + 4 : right].mean()


def test_a_chart_is_drawn_once_for_all_its_frames(film, monkeypatch):
    """Drawing takes a second where there are many messages: no slider would wait for that."""
    monkeypatch.setattr(timeline, "draw", None)
    monkeypatch.setattr(Picture, "png", None)
    assert len({film.frame(index) for index in range(5)}) == 5


def test_pictures_are_drawn_once(film):
    calls = []
    draw = film.draw
    film.draw = lambda index: calls.append(index) or draw(index)
    film.frame(3), film.frame(3)
    assert calls == [3]


def test_pictures_are_drawn_ahead_while_nothing_else_is_to_be_done(film):
    async def idle() -> None:
        film.make_widget()
        for _ in range(600):  # half a minute, where the machine is busy
            if len(film._drawn) > 5:
                break
            await asyncio.sleep(0.05)

    asyncio.run(idle())
    assert sorted(film._drawn) == [0, 1, 2, 3, 4, 5]


def test_what_a_player_says_is_read_aloud(film):
    assert film.still.alt in film._repr_mimebundle_()[0]["text/html"]
    film.show(film.frame(1), "another moment")
    assert 'alt="another moment"' in film._repr_mimebundle_()[0]["text/html"]


SETUP = (
    "from reference.trace import Network, Op, Event, Trace\n"
    "from visualizations import network, player, timeline\n"
    "call = [Event(r, Op.BARRIER, (0, 1), None, 0, (), '', 0, (), '', '', 1, 0, 1, 0., 1.) for r in (0, 1)]\n"
    "line = Trace(2, ((call[0],), (call[1],))).replay(Network.uniform(1e-6, 1e9))"
)
CELLS = {
    "setup": SETUP,
    "pyplot": "import matplotlib.pyplot as plt",
    "picture": "timeline.draw(line)",
    "kept": "p = timeline.draw(line)",
    "player": "player.timeline(line)",
    "film": "film = player.timeline(line)\nfilm",
    "film moves": "film.widget.children[1].value = 1",
    "still": "film = player.timeline(line)\nfilm",
    "nothing moves": "0",
    "without widgets": "import sys; sys.modules['ipywidgets'] = None",
    "player without widgets": "player.timeline(line)",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, list[dict]]:
    """What each cell shows, by its name, when the whole notebook has run."""
    return {name: [each.data for each in outputs] for name, outputs in outputs_of(CELLS).items()}


def test_a_notebook_shows_each_picture_once(shown):
    assert [len(shown[cell]) for cell in ("setup", "pyplot", "picture", "kept")] == [0, 0, 1, 0]
    assert "image/png" in shown["picture"][0] and VIEW not in shown["picture"][0]


def test_the_picture_of_a_player_is_an_output_of_its_own_that_outlives_the_controls(shown):
    controls, picture = shown["player"]
    assert set(controls) == {VIEW, "text/plain"} and controls["text/plain"] == RUN
    assert "image/png" in picture and VIEW not in picture


def test_what_is_saved_is_what_was_seen_last(shown):
    (_, first), (_, still) = shown["film"], shown["still"]
    assert shown["film moves"] == [] and first["image/png"] != still["image/png"]


def test_without_widgets_there_is_still_a_picture(shown):
    assert ["image/png" in each and VIEW not in each for each in shown["player without widgets"]] == [True]

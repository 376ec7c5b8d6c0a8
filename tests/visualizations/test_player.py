"""Players: pictures on demand, and one picture where widgets do not work."""

import sys

import nbclient
import nbformat
import pytest

from reference.trace import Network
from tests.trace import programs as p
from visualizations import player

NETWORK = Network.uniform(alpha=1e-5, beta=1e9)
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def film():
    return player.timeline(p.trace(3, lambda rank: p.naive_all_reduce(rank, 100)).replay(NETWORK), frames=5)


def test_the_slider_changes_picture_and_caption(film):
    controls, image = film.widget.children
    _, slider, caption = controls.children
    first = image.value
    slider.value = 4
    assert image.value == film.frame(4) != first
    assert caption.value == "41.6 µs"


def test_pictures_are_drawn_when_they_are_looked_at(film):
    calls = []
    draw = film.draw
    film.draw = lambda index: calls.append(index) or draw(index)
    film.frame(3), film.frame(3)
    assert calls == [3]


def test_without_widgets_there_is_still_a_picture(film, monkeypatch):
    assert VIEW in film._repr_mimebundle_()[0]
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    film._widget = None
    data, _ = film._repr_mimebundle_()
    assert VIEW not in data and data["image/png"] == film.still._repr_mimebundle_()[0]["image/png"]


def test_a_notebook_shows_each_picture_once():
    setup = (
        "from reference.trace import Network, Op, Event, Trace\n"
        "from visualizations import network, player, timeline\n"
        "call = [Event(r, Op.BARRIER, (0, 1), None, 0, (), '', 0, (), '', '', 1, 0, 1, 0., 1.) for r in (0, 1)]\n"
        "line = Trace(2, ((call[0],), (call[1],))).replay(Network.uniform(1e-6, 1e9))"
    )
    cells = [
        setup,
        "import matplotlib.pyplot as plt",
        "timeline.draw(line)",
        "p = timeline.draw(line)",
        "player.timeline(line)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [len(of_cell) for of_cell in outputs] == [0, 0, 1, 0, 1]
    assert "image/png" in outputs[2][0].data and VIEW not in outputs[2][0].data
    assert {"image/png", VIEW} <= set(outputs[4][0].data)

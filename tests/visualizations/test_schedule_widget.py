"""Sliders over the chart of a pipeline: every position has a picture, and it is the right one."""

import sys

import pytest

from reference.errors import BadInput
from visualizations.schedule_steps import peaks
from visualizations.schedule_widget import LOOPED, SCHEDULES, SLIDERS, Choice, explore

from .reading import assert_readable

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def explorer():
    return explore(schedule="1F1B", ranks=2, micro_batches=4)


def at(end: int, schedule: str) -> Choice:
    """The choice at one end of the sliders of shape."""
    return Choice(schedule, **{field: int(SLIDERS[field][end]) for field in ("ranks", "micro_batches", "chunks")})


def controls_of(explorer) -> dict:
    *rows, _, _ = explorer.widget.children
    return {control.description: control for row in rows for control in row.children}


@pytest.mark.parametrize("schedule", sorted({*SCHEDULES, *LOOPED} - {"DualPipe"}))
def test_every_schedule_has_a_picture_where_sliders_begin(monkeypatch, schedule):
    assert_readable(at(1, schedule).draw(), monkeypatch)


@pytest.mark.parametrize("schedule", ["1F1B", "breadth-first", "DualPipe"])
def test_there_is_a_picture_where_sliders_end(monkeypatch, schedule):
    assert_readable(at(2, schedule).draw(), monkeypatch)


def test_costs_are_those_of_all_layers_of_a_rank():
    costs = {"forward": 1.5, "input": 2.0, "weight": 0.5}
    choices = [Choice(name, 4, 8, 4, **costs) for name in ("GPipe", "interleaved", "ZB-V", "DualPipe")]
    assert [choice.step.busy for choice in choices] == pytest.approx([8 * 4.0] * 4)


def test_messages_make_the_step_longer_and_not_the_work():
    near, far = Choice(), Choice(message=0.5)
    assert far.step.longest > near.step.longest and far.step.busy == near.step.busy


def test_a_slider_changes_the_picture(explorer):
    image = explorer.widget.children[-1]
    controls = controls_of(explorer)
    assert controls["ranks"].value == 2
    before = image.value
    controls["ranks"].value = 3
    controls["F, forward"].value = 2.0
    assert image.value != before
    assert image.value == Choice("1F1B", ranks=3, micro_batches=4, forward=2.0).draw().png()


def test_stages_of_a_rank_can_be_chosen_where_the_schedule_leaves_them_open(explorer):
    controls = controls_of(explorer)
    assert controls["stages of a rank"].disabled
    controls["schedule"].value = "interleaved"
    assert not controls["stages of a rank"].disabled
    controls["stages of a rank"].value = 4
    assert explorer.choice.order.stages == 8
    assert peaks(explorer.choice.step)[0] == 2 + 1 / 4


def test_what_cannot_be_is_said_and_can_be_mended(explorer):
    *_, words, image = explorer.widget.children
    controls = controls_of(explorer)
    controls["ranks"].value = 3
    controls["schedule"].value = "DualPipe"
    assert words.value == "DualPipe folds its ranks in pairs: an even number of them works, 3 does not"
    controls["ranks"].value = 4
    assert not words.value and image.value == Choice("DualPipe", 4, 4).draw().png()


def test_an_explorer_does_not_begin_with_what_cannot_be():
    with pytest.raises(BadInput, match="an even number"):
        explore(schedule="DualPipe", ranks=3)


def test_a_slider_reaches_what_it_begins_with():
    assert controls_of(explore(micro_batches=100, ranks=2))["micro-batches"].max == 100


def test_without_widgets_there_is_still_a_picture(explorer, monkeypatch):
    assert VIEW in explorer._repr_mimebundle_()[0]
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    explorer._widget = None
    data, _ = explorer._repr_mimebundle_()
    assert VIEW not in data and "image/png" in data
    assert repr(explorer) == "<Explorer: <Picture: 1F1B: the bubble is 20%; a rank holds at most 2 activations>>"

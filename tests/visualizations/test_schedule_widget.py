"""Sliders over the chart of a pipeline: every position has a picture, and it is the right one."""

import pytest

from reference.errors import BadInput
from visualizations.schedule_steps import peaks
from visualizations.schedule_widget import CONTROLS, LOOPED, SCHEDULES, Choice, explore

from .reading import assert_readable

SHAPE = [CONTROLS[field] for field in ("ranks", "micro_batches", "chunks")]


@pytest.mark.parametrize("schedule", sorted({*SCHEDULES, *LOOPED} - {"DualPipe"}))
def test_every_schedule_has_a_picture_where_sliders_begin(monkeypatch, schedule):
    assert_readable(Choice(schedule, *[slider.least for slider in SHAPE]).draw(), monkeypatch)


@pytest.mark.parametrize("schedule", ["1F1B", "breadth-first", "DualPipe"])
def test_there_is_a_picture_where_sliders_end(monkeypatch, schedule):
    assert_readable(Choice(schedule, *[slider.most for slider in SHAPE]).draw(), monkeypatch)


def test_costs_are_those_of_all_layers_of_a_rank():
    costs = {"forward": 1.5, "input": 2.0, "weight": 0.5}
    choices = [Choice(name, 4, 8, 4, **costs) for name in ("GPipe", "interleaved", "ZB-V", "DualPipe")]
    assert [choice.step.busy for choice in choices] == pytest.approx([8 * 4.0] * 4)


def test_messages_make_the_step_longer_and_not_the_work():
    near, far = Choice(), Choice(message=0.5)
    assert far.step.longest > near.step.longest and far.step.busy == near.step.busy


def test_stages_of_a_rank_can_be_chosen_where_the_schedule_leaves_them_open():
    assert "chunks" in Choice("1F1B").idle
    looped = Choice("interleaved", ranks=2, micro_batches=4, chunks=4)
    assert "chunks" not in looped.idle
    assert looped.order.stages == 8 and peaks(looped.step)[0] == 2 + 1 / 4


def test_dual_pipe_needs_an_even_number_of_ranks():
    with pytest.raises(BadInput, match="an even number, not 3"):
        explore(schedule="DualPipe", ranks=3)

"""Loads of stages: readable, and as long as they take."""

import pytest
from matplotlib.colors import to_hex

from reference.pipeline_parallel.balance import balanced
from visualizations import stage_loads
from visualizations.style import Colour

from .reading import assert_readable

COSTS = [2] * 8 + [5]
CUTS = {"equal numbers": [range(0, 2), range(2, 4), range(4, 6), range(6, 9)], "by cost": balanced(COSTS, 4)}


def test_loads_can_be_read(monkeypatch):
    assert_readable(stage_loads.draw(COSTS, CUTS, names={8: "head"}), monkeypatch)
    assert_readable(stage_loads.draw([1] * 126, {"one": balanced([1] * 126, 16)}), monkeypatch)


def test_every_layer_is_drawn_as_long_as_it_takes():
    for axes, cut in zip(stage_loads.draw(COSTS, CUTS).axes, CUTS.values(), strict=True):
        boxes = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == Colour.FORWARD.lower()]
        found = sorted((round(box.get_y() + box.get_height() / 2), box.get_x(), box.get_width()) for box in boxes)
        assert [width for *_, width in found] == [COSTS[layer] for stage in cut for layer in stage]


@pytest.mark.parametrize("name", CUTS)
def test_grey_is_what_stages_wait_for_the_slowest(name):
    axes = stage_loads.draw(COSTS, {name: CUTS[name]}).axes[0]
    grey = [patch.get_width() for patch in axes.patches if to_hex(patch.get_facecolor()) == Colour.IDLE.lower()]
    assert grey == [stage_loads.slowest(COSTS, CUTS[name])] * 4


def test_the_title_says_how_uneven_it_is():
    assert stage_loads.finding(COSTS, CUTS) == (
        "The slowest stage takes longer than the mean by 71% (equal numbers), 14% (by cost)"
    )

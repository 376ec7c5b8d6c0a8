"""Memory stacked by kind: readable, true to its data, and with a title that says what follows."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from reference.memory.history import KINDS, History, Kind, Mark
from reference.memory.recipe import RECIPES, Breakdown, Stage, state_bytes
from reference.memory.workload import Workload
from reference.models import PRESETS
from visualizations import memory, memory_widget

from .reading import assert_readable, drawn

GB = 10**9


def step(model: str = "llama3-8b", ranks: int = 8, stage: Stage = Stage.ZERO3) -> History:
    return Workload(PRESETS[model], RECIPES["mixed Adam"], stage, ranks, sequence=8192).history()


def run(moments: int) -> History:
    """As a gauge would see it: rows of everything, growing and shrinking."""
    shape = np.sin(np.linspace(0, np.pi, moments))
    usage = np.outer(shape, [0, 3, 0, 40, 5]) * 1e6 + np.array([3, 0, 6, 0, 0]) * 1e6
    third = moments // 3
    marks = Mark("forward", 0), Mark("backward", third), Mark("step", 2 * third), Mark("end", moments - 1)
    units = {f"block {i}": np.where(np.arange(moments) // 50 % 4 == i, 400, 100) for i in range(4)}
    return History(usage.astype(np.int64), marks, units=units)


@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("stage", [Stage.DDP, Stage.ZERO3])
def test_every_plan_can_be_read(monkeypatch, model, stage):
    assert_readable(memory.draw(step(model, stage=stage), limit=("H100 SXM", 80 * GB)), monkeypatch)


@pytest.mark.parametrize("moments", [40, 1000, 100_000])
@pytest.mark.parametrize("limit", [None, ("half", 25e6), ("just enough", 55e6), ("plenty", 80e9)])
def test_every_run_can_be_read(monkeypatch, moments, limit):
    assert_readable(memory.draw(run(moments), limit=limit), monkeypatch)


def test_the_peak_of_a_long_run_is_drawn():
    """Of 100,000 moments a picture has room for 1,500: the largest of each few."""
    history = run(100_000)
    history.usage[51_234] += 10**9
    columns, usage = memory._columns(history)
    assert len(columns) <= memory.COLUMNS and usage.sum(axis=1).max() == history.peak


def test_the_title_says_whether_it_fits():
    history = History(np.array([[10, 0, 20, 0, 0], [10, 10, 20, 60, 0]]) * GB)
    assert memory.finding(history) == "100 GB at the peak, 60% of it activations"
    over, under = memory.finding(history, ("A", 80 * GB)), memory.finding(history, ("B", 141 * GB))
    assert over == "100 GB at the peak, 60% of it activations: 20 GB too much for A"
    assert under == "100 GB at the peak, 60% of it activations: 41 GB of B stay free"


def test_the_peak_is_told_by_kind(monkeypatch):
    history = History(np.array([[10, 0, 20, 0, 0], [10, 11, 20, 60, 5]]) * GB)
    texts = [words for words, _, _ in drawn(memory.draw(history), monkeypatch)]
    assert texts[texts.index("buffers  5 GB") :][:5] == [
        "buffers  5 GB", "activations  60 GB", "optimizer state  20 GB", "gradients  11 GB", "parameters  10 GB",
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [(4,), (4, 16, 64), (1, 4, 16, 64, 256, 1024)])
@pytest.mark.parametrize("limit", [None, ("A100 SXM", 80 * GB)])
def test_states_can_be_read(monkeypatch, ranks, limit):
    cases = {(stage, n): state_bytes(75 * 10**8, RECIPES["mixed Adam"], stage, n) for stage in Stage for n in ranks}
    first = list(cases)[:2]
    measured = {case: Breakdown(cases[case].parameters, cases[case].gradients, 100 * GB) for case in first}
    assert_readable(memory.draw_state(cases, limit=limit), monkeypatch)
    assert_readable(memory.draw_state(cases, measured=measured, limit=limit), monkeypatch)


def test_measured_states_are_dots_on_the_bars():
    state = Breakdown(1000, 2000, 3000)
    picture = memory.draw_state({("DDP", 2): state, ("ZeRO-1", 2): state}, measured={("ZeRO-1", 2): state})
    (dots,) = [line for line in picture.axes[0].lines if line.get_marker() == "o"]
    tops = [bar.get_y() + bar.get_height() for bar in picture.axes[0].patches if bar.get_x() > 0.5]
    assert dots.get_ydata().tolist() == tops == [1000, 3000, 6000]


def test_a_state_is_told_by_its_ends():
    cases = {("DDP", 4): Breakdown(2000, 2000, 12000), ("ZeRO-3", 4): Breakdown(500, 500, 3000)}
    title = "Between 4 KB (ZeRO-3, 4 ranks) and 16 KB (DDP, 4 ranks) on each rank"
    assert memory.draw_state(cases).get_suptitle() == title


def test_the_life_of_shards_can_be_read(monkeypatch):
    picture = memory.draw_life(run(400))
    assert_readable(picture, monkeypatch)
    assert picture.get_suptitle() == "At most 1 of 4 units is whole at once"
    assert any("bar: whole, 400 B at most" in words for words, _, _ in drawn(picture, monkeypatch))


def test_a_unit_is_whole_from_gathering_to_freeing():
    assert memory._runs(memory._whole(np.array([1, 1, 4, 4, 1, 4]))) == [
        (0, 2, False), (2, 4, True), (4, 5, False), (5, 6, True),
    ]  # fmt: skip


def test_neighbours_in_the_stack_differ_in_greyscale():
    grey = [float(np.dot(to_rgb(memory.FACES[kind]), (0.299, 0.587, 0.114))) for kind in KINDS]
    assert all(abs(a - b) > 0.12 for a, b in pairwise(grey))


def test_every_model_has_a_picture_in_every_extreme(monkeypatch):
    for model in PRESETS:
        for ranks, sequence in ((1, 128), (16384, 131072)):
            assert_readable(memory_widget.Choice(model, ranks=ranks, sequence=sequence).draw(), monkeypatch)


def test_recipes_in_the_menu_train():
    assert all(RECIPES[name].gradients for name in memory_widget.CONTROLS["recipe"].values)


def test_every_value_in_the_menus_has_words():
    words = {field: [menu.words(value) for value in menu.values] for field, menu in memory_widget.CONTROLS.items()}
    assert words["stage"] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP"]
    assert words["recompute"] == ["none", "selective", "full"]
    assert words["ranks"][-1] == "16,384" and "mixed Adam (16 B)" in words["recipe"]


def test_kinds_are_stacked_in_the_order_of_the_style():
    names = ["parameters", "gradients", "optimizer state", "activations", "buffers"]
    assert [kind.value for kind in Kind] == names == [kind.value for kind in memory.FACES]

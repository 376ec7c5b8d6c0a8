"""Memory stacked by kind: readable, true to its data, and with a title that says what follows."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from reference.errors import BadInput
from reference.memory.history import KINDS, History, Mark, MemoryKind
from reference.memory.recipe import RECIPES, Breakdown, Stage, state_bytes
from reference.memory.workload import Workload
from reference.models import PRESETS
from visualizations import memory, memory_widget
from visualizations.style import DPI

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


def step_of(moments: int, most: float) -> History:
    """As `run`, in two phases, with `most` MB of activations."""
    usage = run(moments).usage
    usage[:, 3] = usage[:, 3] * most / 40
    return History(usage, (Mark("forward", 0), Mark("step", moments // 2)))


@pytest.mark.turns(3)
@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("stage", [Stage.DDP, Stage.ZERO3])
def test_every_plan_can_be_read(monkeypatch, model, stage):
    assert_readable(memory.draw(step(model, stage=stage), limit=("H100 SXM", 80 * GB)), monkeypatch)


@pytest.mark.turns(3)
@pytest.mark.parametrize("moments", [40, 1000, 100_000])
@pytest.mark.parametrize("limit", [None, ("half", 25e6), ("just enough", 55e6), ("plenty", 80e9)])
def test_every_run_can_be_read(monkeypatch, moments, limit):
    assert_readable(memory.draw(run(moments), limit=limit), monkeypatch)


@pytest.mark.turns(3)
@pytest.mark.parametrize("ways", [1, 2, 3, 4])
@pytest.mark.parametrize("limit", [None, ("our device", 32e6), ("a large device", 90e6), ("plenty", 80e9)])
def test_every_comparison_can_be_read(monkeypatch, ways, limit):
    histories = {f"in {2**k} pieces": step_of(1000 * (k + 1), 40 / 2**k) for k in range(ways)}
    assert_readable(memory.compare(histories, limit=limit), monkeypatch)


def test_panels_have_one_scale_and_say_their_peaks(monkeypatch):
    picture = memory.compare({"before": step_of(1000, 40), "after": step_of(1000, 4)})
    assert len({axes.get_ylim() for axes in picture.axes}) == 1
    words = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert [word for word in words if word in ("57 MB", "21 MB")] == ["57 MB", "21 MB"]
    assert repr(picture) == "<Picture: before 57 MB, after 21 MB>"


@pytest.mark.turns(3)
@pytest.mark.parametrize("moments", [40, 1000, 100_000])
@pytest.mark.parametrize("ways", [0, 1, 2, 3, 4])
def test_the_peak_is_drawn_and_can_be_seen(moments, ways):
    """However many moments share a column of dots: its height is the largest of them."""
    history = run(moments)
    history.usage[moments // 2] += 10**9
    picture = memory.compare({str(way): history for way in range(ways)}) if ways else memory.draw(history)
    picture.pixels()
    for axes in picture.axes:
        x, y = tops(axes, len(KINDS) - 1)
        assert y.max() == history.peak
        high = x[y == history.peak]
        assert np.ptp(axes.transData.transform([(high.min(), 0), (high.max(), 0)])[:, 0]) / DPI >= 0.01 - 1e-9


def tops(axes, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the upper edge of one layer of the stack."""
    corners = axes.collections[layer].get_paths()[0].vertices
    x, y = corners.T
    upper = np.array([y[x == each].max() for each in x]) == y
    return x[upper], y[upper]


def test_layers_are_the_kinds_in_their_colours():
    history = History(np.array([[10, 0, 20, 5, 2], [10, 11, 20, 60, 5]]) * GB)
    for picture in (memory.draw(history), memory.compare({"one": history})):
        layers = picture.axes[0].collections[: len(KINDS)]
        assert [to_rgb(layer.get_facecolor()[0][:3]) for layer in layers] == [to_rgb(memory.FACES[k]) for k in KINDS]
        highest = [max(layer.get_paths()[0].vertices[:, 1]) for layer in layers]
        assert highest == np.cumsum(history.usage[1]).tolist()


def test_each_phase_has_its_name_or_an_explained_letter(monkeypatch):
    short = History(step_of(100, 4).usage, (Mark("forward", 0), Mark("step", 98)))
    picture = memory.compare({"even": step_of(100, 4), "uneven": short})
    words = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert [word for word in words if word in ("forward", "step", "f", "s")] == ["forward", "step", "forward", "s"]
    assert any(word.endswith("; s: step") for word in words)


def test_a_comparison_names_only_kinds_that_are_there(monkeypatch):
    history = History(np.array([[0, 10, 0, 60, 0]]) * GB)
    words = [words for words, _, _ in drawn(memory.compare({"one": history}), monkeypatch)]
    assert {kind.value for kind in KINDS} & set(words) == {"gradients", "activations"}


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(BadInput, match="no history"):
        memory.compare({})


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
    assert [kind.value for kind in MemoryKind] == names == [kind.value for kind in memory.FACES]

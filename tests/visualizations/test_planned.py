"""What is drawn of plans is what was predicted."""

import pytest
from matplotlib.patches import Rectangle

from reference.errors import BadInput
from reference.models import preset
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts, Sharding
from reference.planning.predict import Prediction, predict
from reference.planning.published import measurements
from visualizations import planned, planner_widget

from .reading import assert_readable

JOB = Job(preset("llama3-70b"), GpuCluster(gpu("h100"), 512), sequence=8192, batch=1024)


def plans() -> dict[str, Prediction]:
    return {
        "small": predict(JOB, Layouts(tp=8, pp=4, dp=16, sequence_parallel=True, sharding=Sharding.ZERO1)),
        "large": predict(JOB, Layouts(tp=2, pp=8, dp=32, sequence_parallel=True)),
    }


def widths(picture: planned.Picture, rows: int) -> list[float]:
    """Of all bars of each row together."""
    bars = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    per_row = len(bars) // rows
    return [sum(bar.get_width() for bar in bars[row * per_row : (row + 1) * per_row]) for row in range(rows)]


def test_bars_are_as_long_as_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans()
    room, time = planned.room(found), planned.time(found)
    assert widths(room, 2) == pytest.approx([float(plan.bytes) for plan in found.values()])
    assert widths(time, 2) == pytest.approx([float(plan.seconds) for plan in found.values()])
    assert room.get_suptitle() == "What fits: small"
    for picture in (room, time):
        assert_readable(picture, monkeypatch)


def test_each_step_is_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in measurements() if row.file.startswith("validate")]
    picture = planned.against_published(rows)
    marks = [line for line in picture.axes[0].lines if line.get_marker() not in ("None", None, "")]
    assert sum(len(line.get_xdata()) for line in marks) == len(rows)
    assert sorted(x for line in marks for x in line.get_xdata()) == sorted(row.seconds for row in rows)
    assert_readable(picture, monkeypatch)


def test_a_map_names_the_fastest_and_says_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plans()
    picture = planned.plan_map({(8, 4): found["small"], (2, 8): found["large"], (1, 4): None, (8, 8): None})
    said = [text.get_text() for text in picture.axes[0].texts]
    assert said.count("does not fit") == 2
    faster = min(found.values(), key=lambda plan: float(plan.seconds))
    assert f"tp {int(faster.layouts.tp)}, pp {int(faster.layouts.pp)} is fastest" in picture.get_suptitle()
    assert_readable(picture, monkeypatch)
    assert_readable(planned.frontier(list(found.values())), monkeypatch)


@pytest.mark.parametrize(
    "draw", [planned.room, planned.time, planned.against_published, planned.plan_map, planned.frontier]
)
def test_nothing_to_draw_is_said(draw) -> None:
    with pytest.raises(BadInput, match=r"no plan|no step"):
        draw({} if draw in (planned.room, planned.time, planned.plan_map) else [])


@pytest.mark.parametrize(
    "choice", [{}, {"model": "llama3-8b", "gpus": 8, "tp": 1, "pp": 1}, {"gpu": "v100", "tp": 1, "pp": 1}]
)
def test_the_widget_draws_its_choice(choice: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_readable(planner_widget.Choice(**choice).draw(), monkeypatch)


def test_the_widget_names_each_part_that_can_be_seen() -> None:
    """A part that is too narrow for its name is in the legend: no colour is left without words."""
    choice = planner_widget.Choice()
    parts = (choice.plan.room, choice.plan.time)
    for axes, known in zip(choice.draw().axes, parts, strict=True):
        named = {text.get_text() for text in axes.get_legend().get_texts()}
        whole = sum(map(float, known.values()))
        assert named == {part for part, size in known.items() if float(size) > 0.001 * whole}
        inside = {text.get_text().partition("\n")[0] for text in axes.texts}
        assert inside < named, "some are too narrow"


def test_words_stand_beside_the_line_of_what_a_gpu_has() -> None:
    choice = planner_widget.Choice(model="llama3-8b", gpus=8, batch=32, tp=1, pp=1, recompute="selective")
    axes = choice.draw().axes[0]
    limit = axes.transData.transform((choice.plan.job.cluster.gpu.memory, 0))[0]
    boxes = {text.get_text().partition("\n")[0]: text.get_window_extent() for text in axes.texts}
    assert "activations" in boxes, "the line goes through this part"
    assert not [name for name, box in boxes.items() if box.x0 < limit < box.x1]
    assert "lost to" not in choice.finding, "nothing worth a word is"


def test_a_choice_that_cannot_be_is_said() -> None:
    explorer = planner_widget.explore()
    with pytest.raises(BadInput, match="512 GPUs do not divide"):
        planner_widget.Choice(tp=16, pp=16, cp=4).draw()
    assert "MFU" in explorer.still.get_suptitle()
    before = explorer.seen
    assert explorer.choose(recompute="full") != before

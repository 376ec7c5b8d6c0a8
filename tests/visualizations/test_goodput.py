"""Goodput over GPUs and intervals, and loss over sizes: lines are the formulas, marks are their best."""

import numpy as np
import pytest

from reference.errors import BadInput
from reference.planning import stragglers
from reference.planning.failures import LLAMA3
from reference.planning.goodput import Reliability, goodput
from reference.planning.scaling_law import BESIROGLU, HOFFMANN
from visualizations import goodput as charts
from visualizations import iso_flops
from visualizations.style import Picture

from .reading import assert_readable, drawn

SLOW = Reliability(LLAMA3.gpu_mtbf, checkpoint=60, detection=600, restart=300)
GPUS = (1, 8, 64, 512, 4096, 16_384, 131_072)
PICTURES = {
    "over GPUs": lambda: charts.over_gpus(SLOW, GPUS, (3600, 600), imitated={16_384: 0.83, 65_536: 0.59}),
    "over few GPUs": lambda: charts.over_gpus(SLOW, (8, 1024), ()),
    "parts": lambda: charts.parts(SLOW, GPUS, times=stragglers.normal(1, 0.01)),
    "parts of few": lambda: charts.parts(Reliability(1e8, 1.0), (1, 100)),
    "over intervals": lambda: charts.over_intervals(SLOW, (1024, 16_384, 131_072), (20, 5e4)),
    "over short intervals": lambda: charts.over_intervals(Reliability(1e6, 0.1), (100,), (1, 1000)),
    "equal FLOPs": lambda: iso_flops.draw(HOFFMANN, (1e19, 1e21, 5.76e23, 3.8e25)),
    "with models": lambda: iso_flops.draw(
        HOFFMANN, (1e21, 5.76e23), models={"Gopher": (280e9, 300e9), "Chinchilla": (70e9, 1.4e12)}
    ),
    "one budget": lambda: iso_flops.draw(BESIROGLU, (1e16,)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_chart_can_be_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert_readable(PICTURES[name](), monkeypatch)


def labelled(picture: Picture, name: str) -> np.ndarray:
    """The points of the line of this name."""
    [line] = [line for line in picture.axes[0].lines if line.get_label() == name]
    return line.get_xydata()


def test_lines_are_the_formula_and_dots_what_was_imitated() -> None:
    picture = PICTURES["over GPUs"]()
    for name, interval in (("best interval", None), ("every 1 h", 3600.0), ("every 10 min", 600.0)):
        gpus, useful = labelled(picture, name).T
        assert (gpus[0], gpus[-1]) == pytest.approx((1, 131_072))
        assert useful == pytest.approx(goodput(SLOW, gpus, interval).useful)
    assert labelled(picture, "failures at random").tolist() == [[16_384, 0.83], [65_536, 0.59]]


def test_parts_fill_the_time() -> None:
    picture = PICTURES["parts"]()
    useful, *_, restarts = picture.axes[0].collections
    found = goodput(SLOW, 131_072, None, stragglers.stretch(131_072, stragglers.normal(1, 0.01))).useful
    at_the_end = [y for x, y in useful.get_paths()[0].vertices if x == pytest.approx(131_072)]
    assert max(at_the_end) == pytest.approx(found)
    assert restarts.get_paths()[0].vertices[:, 1].max() == pytest.approx(1)
    assert [text.get_text() for text in picture.axes[0].get_legend().get_texts()] == [*charts.PARTS][::-1]


def test_titles_say_what_was_found() -> None:
    assert "At 131,072 GPUs 38% of the time is useful" in repr(PICTURES["over GPUs"]())
    assert "most of the rest is detection: 35%" in repr(PICTURES["parts"]())
    assert "18.6 min at 16,384 GPUs" in repr(PICTURES["over intervals"]())
    assert "273 billion parameters on 23.2 trillion tokens, 85 for each" in repr(PICTURES["equal FLOPs"]())


def test_the_least_of_each_curve_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = PICTURES["over intervals"]()
    words = [each for each, _, _ in drawn(picture, monkeypatch)]
    for gpus in (1024, 16_384, 131_072):
        curve = labelled(picture, f"{gpus:,} GPUs")
        assert f"{curve[:, 1].min():.1%}" in words
    marks = [line.get_xydata()[0] for line in picture.axes[0].lines if line.get_marker() in ("o", "s", "^")]
    assert len(marks) == 3
    for mark, gpus in zip(marks, (1024, 16_384, 131_072), strict=True):
        assert mark[1] <= labelled(picture, f"{gpus:,} GPUs")[:, 1].min()


def test_curves_of_equal_flops_have_their_least_at_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = PICTURES["equal FLOPs"]()
    assert {"271M", "2.2B", "40B", "273B"} <= {words for words, _, _ in drawn(picture, monkeypatch)}
    for flops, name in ((1e21, "1e21 FLOPs"), (5.76e23, "5.76e23 FLOPs")):
        sizes, losses = labelled(picture, name).T
        best = HOFFMANN.optimum(flops)
        assert sizes[losses.argmin()] == pytest.approx(best.parameters, rel=0.02)
        assert losses == pytest.approx(HOFFMANN.loss(sizes, flops / 6 / sizes))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: charts.over_gpus(SLOW, (8,)), "to a larger number"),
        (lambda: charts.parts(SLOW, (0, 8)), "from 1 or more"),
        (lambda: charts.over_intervals(SLOW, (), (1, 10)), "lines must be at least 1"),
        (lambda: charts.over_intervals(SLOW, (8,), (10, 1)), "to more, not"),
        (lambda: iso_flops.draw(HOFFMANN, ()), "budgets must be at least 1"),
        (lambda: iso_flops.draw(HOFFMANN, (1e20, 0)), "FLOPs, above 0, not 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wrong()

"""Pipelines that never flush: every box says what it sees, and the title says what was found."""

import pytest
from matplotlib.colors import to_hex

from reference.zero_bubble.lab.convergence import Curve, update_times
from reference.zero_bubble.methods import FLUSHING, METHODS, PIPEDREAM, PIPEMARE, TWO_BUFFERED, Method
from visualizations import staleness
from visualizations.style import Colour

from .reading import assert_readable

RUNS = [(FLUSHING, 4), (PIPEDREAM, 1), (TWO_BUFFERED, 4), (PIPEMARE, 1)]


def curve(method: Method, m: int, losses: list[float]) -> Curve:
    return Curve(method, tuple(losses), update_times(method, 4, m, len(losses)))


CURVES = [
    curve(FLUSHING, 4, [5.0 / (1 + 0.10 * t) for t in range(40)]),
    curve(PIPEDREAM, 1, [5.0 / (1 + 0.07 * t) for t in range(40)]),
    curve(TWO_BUFFERED, 4, [5.0 / (1 + 0.08 * t) for t in range(40)]),
]


def test_charts_and_curves_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_readable(staleness.versions(RUNS), monkeypatch)
    assert_readable(staleness.versions([(PIPEDREAM, 2), (TWO_BUFFERED, 2)], p=3), monkeypatch)
    assert_readable(staleness.convergence(CURVES), monkeypatch)


def test_only_pipemare_goes_back_through_other_weights() -> None:
    for (method, m), axes in zip(RUNS, staleness.versions(RUNS).axes, strict=True):
        marked = [text for text in axes.texts if text.get_bbox_patch()]
        assert bool(marked) == (method is PIPEMARE), (method.name, m)
        if marked:
            assert {to_hex(text.get_bbox_patch().get_facecolor()) for text in marked} == {Colour.ERROR.lower()}
            assert all(round(text.get_position()[1]) < 3 for text in marked), "the last stage goes back at once"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_stage_says_how_many_versions_it_keeps(method: Method) -> None:
    m = dict(RUNS)[method]
    axes = staleness.versions([(method, m)]).axes[0]
    found = [text.get_text() for text in axes.texts if text.get_text().startswith("keeps")]
    assert found == [f"keeps {method.versions(4, m, stage)}" for stage in range(4)]


def test_updates_stand_where_a_batch_is_through() -> None:
    axes = staleness.versions([(TWO_BUFFERED, 4)], until=33.0).axes[0]
    ends = [line.get_xdata()[0] for line in axes.lines if round(line.get_ydata().mean()) == 3]
    assert ends[:2] == [3 + 4 * 3, 3 + 8 * 3], "on the last stage, after every fourth forward and backward"


def test_time_is_that_of_a_pipeline_with_and_without_bubbles() -> None:
    flushing, pipedream, two_buffered = CURVES
    assert flushing.update_times[0] == pytest.approx(3 * (4 + 3) / 4)
    assert flushing.update_times[-1] == pytest.approx(40 * flushing.update_times[0])
    for one, m in ((pipedream, 1), (two_buffered, 4)):
        assert one.update_times[-1] == pytest.approx(3 * (40 + 3 / m)), "the pipeline is filled once"


def test_the_title_says_who_is_best_by_updates_and_by_time() -> None:
    title = " ".join(staleness.convergence(CURVES).get_suptitle().split())
    assert title == "After as many updates, 1F1B with a flush is best (1.13); after as much time, PipeDream-2BW (1.33)"

"""The chart of a pipeline: readable, and every box is an action."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.colors import to_hex

from reference.errors import BadInput
from reference.pipeline_parallel.lab.measure import measured
from reference.pipeline_parallel.orders import gpipe, interleaved, interleaved_even, naive, one_f_one_b
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.simulate import ActionSpan, Costs, Simulation, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.building_blocks import one_f_one_b_v, v_half, v_min
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v
from visualizations import schedules
from visualizations.schedule_steps import finding, finding_of, held, peaks, simulated, window
from visualizations.style import DPI, Colour, width_of

from .reading import assert_readable, drawn

ORDERS: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": partial(interleaved, v=2),
    "interleaved-even": partial(interleaved_even, v=2),
    "ZB-H1": zb_h1,
    "ZB-H2": zb_h2,
    "ZB-V": zb_v,
    "1F1B-V": one_f_one_b_v,
    "V-Half": v_half,
    "V-Min": v_min,
    "DualPipe": dual_pipe,
    "DualPipeV": dual_pipe_v,
}


def boxes(axes) -> dict[str, list[tuple[float, float, int]]]:
    """Begin, end and lane of all boxes of a chart, by colour."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for collection in axes.collections:
        corners = [path.vertices for path in collection.get_paths()]
        here = [(xy[:, 0].min(), xy[:, 0].max(), int(np.floor(xy[:, 1].max()))) for xy in corners]
        found.setdefault(to_hex(collection.get_facecolor()[0]), []).extend(here)
    return found


def run_of(step: Simulation, late: float) -> list[list[ActionSpan]]:
    """As if it had been measured by a clock that is at `late` when the step begins."""
    return [[ActionSpan(action, begin + late, end + late) for action, begin, end in line] for line in step.spans]


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 8)])
def test_every_schedule_can_be_read(monkeypatch, name, p, m):
    picture = schedules.draw(ORDERS[name](p, m), activations=p == 4)
    assert_readable(picture, monkeypatch)
    assert picture.get_size_inches()[1] < 6


@pytest.mark.parametrize(("name", "numbered"), [("1F1B", True), ("interleaved", False), ("ZB-V", False)])
def test_numbers_on_eight_ranks_can_be_read_or_are_not_there(monkeypatch, name, numbered):
    schedule = ORDERS[name](8, 16)
    picture = schedules.draw(schedule)
    assert_readable(picture, monkeypatch)
    there = sum(text.get_clip_on() for text in picture.axes[0].texts)
    assert there == numbered * sum(map(len, schedule.lines))
    assert picture.get_size_inches()[1] < 6


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12)])
def test_numbers_lie_within_their_boxes(name, p, m):
    step = simulated(ORDERS[name](p, m))
    picture = schedules.draw(step)
    picture.pixels()
    axes = picture.axes[0]
    numbers = [text for text in axes.texts if text.get_clip_on()]
    for text in numbers:
        middle, rank = text.get_position()
        span = next(span for span in step.spans[round(rank)] if span.begin < middle < span.end)
        left, right = (axes.transData.transform((x, 0))[0] for x in (span.begin, span.end))
        wide = max(width_of(line, text.get_fontsize(), "normal") for line in text.get_text().split("\n"))
        assert wide * DPI <= right - left, text
    assert numbers or name not in ("GPipe", "1F1B", "ZB-H1")


@pytest.mark.parametrize("name", ["1F1B", "DualPipe"])
def test_many_ranks_are_drawn_without_numbers(monkeypatch, name):
    picture = schedules.draw(ORDERS[name](64, 128), activations=True)
    assert_readable(picture, monkeypatch)
    assert not picture.axes[0].texts


@pytest.mark.parametrize("name", ORDERS)
def test_boxes_are_the_actions(name):
    step = simulated(ORDERS[name](4, 8))
    found = boxes(schedules.draw(step).axes[0])
    of_kind = {kind: [(s.begin, s.end, r) for r, line in enumerate(step.spans) for s in line if s.action.kind is kind]
               for kind in Kind}  # fmt: skip
    blue, green, dark = (
        sorted(box for chunk in (0, 1) for box in set(found.get(schedules.shade(kind, chunk, 2), ())))
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
    )
    assert blue == sorted(of_kind[Kind.FORWARD])
    assert green == sorted(of_kind[Kind.BACKWARD] + of_kind[Kind.INPUT])
    assert dark == sorted(of_kind[Kind.BACKWARD] + of_kind[Kind.WEIGHT])  # a whole backward has a strip


@pytest.mark.parametrize("name", sorted(ORDERS.keys() - {"naive"}))  # which takes too long for its numbers
@pytest.mark.parametrize("m", [13])
def test_numbers_are_the_micro_batches_of_their_boxes(name, m):
    step = simulated(ORDERS[name](4, m))
    texts = [text for text in schedules.draw(step).axes[0].texts if text.get_clip_on()]  # what is beside lanes is not
    written = [(*text.get_position()[::-1], text.get_text().replace("\n", "")) for text in texts]
    spans = [(rank, span) for rank, line in enumerate(step.spans) for span in line]
    if not written:  # there is room in none of the boxes that are half as wide
        assert len({span.action.stage for span in step.spans[0]}) > 1
        return
    assert sorted((round(rank), middle, words) for rank, middle, words in written) == sorted(
        (rank, (begin + end) / 2, str(action.micro_batch)) for rank, (action, begin, end) in spans
    )


@pytest.mark.parametrize("m", [2, 16])
@pytest.mark.parametrize("name", ORDERS)
def test_a_lane_has_as_much_grey_as_the_bubble(name, m):
    step = simulated(ORDERS[name](4, m))
    grey = {rank: end - begin for begin, end, rank in boxes(schedules.draw(step).axes[0])[str(Colour.IDLE).lower()]}
    work = [sum(span.end - span.begin for span in line) for line in step.spans]
    assert [grey[rank] - work[rank] for rank in range(4)] == pytest.approx([step.longest - each for each in work])
    for line in step.spans:
        begin, end = window(line, step)
        assert begin <= line[0].begin and line[-1].end <= end <= step.seconds


@pytest.mark.parametrize("name", ORDERS)
def test_what_is_held_at_most_is_what_validate_proves(name):
    schedule = ORDERS[name](4, 8)
    share = 4 / len(schedule.routes[0])
    step = simulated(schedule)
    assert peaks(step) == pytest.approx([n * share for n in validate(schedule).activations])
    assert all(counts[-1] == pytest.approx(0) for _, counts in held(step))


def test_a_schedule_is_drawn_at_equal_costs_of_a_rank():
    steps = [simulated(ORDERS[name](4, 8)) for name in ("1F1B", "interleaved", "ZB-V", "DualPipe")]
    assert [step.busy for step in steps] == [24] * 4


@pytest.mark.parametrize("name", ORDERS)
def test_a_run_is_drawn_as_the_simulation_that_it_follows(name):
    step = simulated(ORDERS[name](4, 8))
    assert simulated(run_of(step, late=1024.0)) == replace(step, unit="s")


def test_time_has_the_unit_of_its_step():
    plan, schedule = simulate(one_f_one_b(2, 4), Costs(0.01, 0.01, 0.01, unit="s")), one_f_one_b(2, 4)
    run, measured_run = run_of(plan, late=5.0), measured(schedule, run_of(plan, late=5.0))
    labels = [schedules.draw(each).axes[0].get_xlabel() for each in (schedule, plan, run, measured_run)]
    assert labels == ["time (F)", "time (ms)", "time (ms)", "time (ms)"]
    assert schedules.draw(plan, unit="cycles").axes[0].get_xlabel() == "time (cycles)"


def test_charts_that_are_compared_have_one_unit():
    schedule = one_f_one_b(2, 4)
    plan = simulate(schedule, Costs(0.01, 0.01, 0.01, unit="s"))
    picture = schedules.compare({"plan": plan, "run": run_of(plan, late=5.0)})
    assert picture.axes[-1].get_xlabel() == "time (ms)"
    with pytest.raises(BadInput, match=r"\['F', 's'\]"):
        schedules.compare({"plan": schedule, "run": run_of(plan, late=5.0)})


def test_titles_say_what_follows():
    assert finding(one_f_one_b(4, 8)) == "The bubble is 27%; a rank holds at most 4 activations"
    assert finding(zb_h2(4, 8)) == "No bubble; a rank holds at most 7 activations"
    assert finding(naive(1, 3)) == "No bubble; a rank holds at most 1 activation"
    plans = {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8), "ZB-H2": zb_h2(4, 8)}
    assert finding_of(plans) == "ZB-H2 waits least (no bubble); 1F1B holds least (4)"
    assert finding_of({"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}) == (
        "The bubble is 27% in all of them; 1F1B holds least (4)"
    )
    assert finding_of({"plan": gpipe(4, 8), "run": simulate(gpipe(4, 8), Costs(message=0.5))}) == (
        "The same order; bubble: 27% (plan), 33% (run)"
    )
    full = simulate(zb_h2(4, 8), Costs(0.3, 0.3, 0.3))
    assert full.busy >= full.longest and full.bubble_rate == 0, "sums are rounded before Python 3.12; no rank waits"
    assert finding_of({"plan": zb_h2(4, 8), "run": full}) == "The same order; bubble: none (plan), none (run)"
    assert finding_of({"1F1B": one_f_one_b(4, 8), "ZB-V": zb_v(4, 8)}) == (
        "ZB-V waits least (no bubble), and none holds less"
    )


def test_inference_holds_nothing(monkeypatch):
    lines = [[action for action in line if action.kind is Kind.FORWARD] for line in gpipe(4, 8).lines]
    picture = schedules.draw(Schedule.straight(lines, range(4), 8))
    assert picture.get_suptitle() == "No bubble"
    assert_readable(picture, monkeypatch)


def test_charts_that_are_compared_share_an_axis(monkeypatch):
    plans = {name: ORDERS[name](4, 8) for name in ("GPipe", "interleaved", "ZB-V", "DualPipe")}
    picture = schedules.compare(plans)
    assert_readable(picture, monkeypatch)
    longest = max(simulated(plan).seconds for plan in plans.values())
    assert {axes.get_xlim() for axes in picture.axes} == {(0, longest)}
    texts = [words for words, _, _ in drawn(picture, monkeypatch)]
    assert all(f"{name}: {finding(plan)[0].lower()}{finding(plan)[1:]}" in texts
               for name, plan in plans.items())  # fmt: skip

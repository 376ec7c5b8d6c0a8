"""What cannot be drawn is refused in one line that says why."""

import math
from collections.abc import Callable

import pytest
import torch

from reference.composition.lab.published import FIGURE_13, SELENE
from reference.errors import BadInput
from reference.mesh import Mesh
from reference.models import PRESETS
from reference.pipeline_parallel.orders import gpipe
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.trace import NVLINK4, Network, Timeline
from reference.trace.activity import Activity, Doing
from reference.trace.contents import Contents
from reference.zero_bubble.lab.convergence import Curve
from reference.zero_bubble.methods import PIPEDREAM
from tests.trace import programs as p
from visualizations import (
    axes_traffic,
    collective,
    cost,
    curves,
    magnitudes,
    matrices,
    memory_widget,
    mesh,
    network,
    overlap,
    player,
    schedule_widget,
    schedules,
    stage_loads,
    staleness,
    style,
    timeline,
    trade_offs,
    traffic,
)

TRACE = p.trace(4, lambda rank: p.ring_all_reduce(rank, 100))
HELD = [Contents((((1,),),) * 13)] * 4
MANY = [Contents((((1,),) * 100,) * 13)] * 4
LOST = Curve(PIPEDREAM, (5.0, math.nan) * 10, tuple(map(float, range(20))))

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no curve": (lambda: cost.draw({}, (1, 1e6), measured={"gloo": [(1e3, 1e-3)]}), "give one, or a title"),
    "no activity": (lambda: overlap.draw([[], []]), "no rank has an activity"),
    "no chart": (lambda: schedules.compare({}), "these have none"),
    "no action": (lambda: schedules.draw([[], []]), "no rank has computed anything"),
    "zeros": (lambda: magnitudes.draw({"bias": torch.zeros(3)}, torch.float16, title=""), "bias has no magnitudes"),
    "not numbers": (
        lambda: magnitudes.draw({"bias": torch.tensor([1.0, math.nan])}, torch.float16, title=""),
        "bias has NaN, which has no magnitude",
    ),
    "another mesh": (lambda: axes_traffic.draw(TRACE, Mesh({"data": 8})), "arranges 8 ranks, and the trace is of 4"),
    "no such step": (lambda: collective.draw(TRACE, HELD, shown=[99]), "no step 99: the run has 0, 1, 2"),
    "no split": (lambda: trade_offs.seconds(FIGURE_13, [], SELENE), "no split to draw"),
    "no such weight": (lambda: matrices.weight("wq", PRESETS["llama3-8b"], 2), "no parameter wq: there are"),
    "sizes from 0": (lambda: cost.draw({"ring": lambda size: 1e-3}, (0, 1e9)), "above 0, to more"),
    "no time": (lambda: cost.draw({"ring": lambda size: 0.0}, (1, 1e9)), "ring has 0 time, which has no place"),
    "not a time": (lambda: cost.draw({"ring": lambda size: math.nan}, (1, 1e9)), "ring has nan time"),
    "no bandwidth": (lambda: cost.draw_bandwidth({}, (1, 1e9)), "give a curve"),
    "no contents": (lambda: collective.draw(TRACE, HELD[:3]), "of 4 ranks, and there are contents of 3"),
    "no step at all": (lambda: collective.draw(TRACE, HELD, shown=[]), "no step to draw: the run has 0, 1"),
    "too many chunks": (lambda: collective.draw(TRACE, MANY), "100 chunks do not fit"),
    "no point": (lambda: curves.draw({"loss": []}, title="", x="", y=""), "no dots have a point"),
    "no power": (
        lambda: curves.draw({"off": [(1, 0.0)]}, title="", x="", y="", scale=curves.Scale.LOG_Y),
        "y is 0 or less, and an axis of powers has no place",
    ),
    "no cut": (lambda: stage_loads.draw([1, 1], {}), "no cut to draw"),
    "half a cut": (lambda: stage_loads.draw([1, 1], {"mine": [range(1)]}), "mine does not deal out all of the 2"),
    "layers of no time": (lambda: stage_loads.draw([0, 0], {"mine": [range(2)]}), "these take 0"),
    "no method": (lambda: staleness.versions([]), "methods must be at least 1"),
    "diverged": (lambda: staleness.convergence([LOST]), "PipeDream has diverged: update 1 has no loss"),
    "no curve of a loss": (lambda: staleness.convergence([]), "curves must be at least 1"),
    "no end": (lambda: overlap.draw([[Activity(Doing.FORWARD, "", 0.0, 0.0)]]), "it takes 0 s"),
    "no duration": (lambda: timeline.draw(Timeline(2, (), (), math.nan)), "this one takes nan s"),
    "a step of no time": (lambda: schedules.draw(simulate(gpipe(2, 2), Costs(0, 0, 0))), "the step takes 0 F"),
    "no frame": (lambda: player.timeline(TRACE.timeline(), frames=0), "frames must be at least 1"),
    "empty nodes": (lambda: mesh.draw(Mesh({"data": 8}), 0), "ranks_per_node must be at least 1"),
    "empty nodes of traffic": (lambda: traffic.draw({"ring": TRACE}, 0), "ranks_per_node must be at least 1"),
    "empty nodes of talk": (
        lambda: axes_traffic.draw(TRACE, Mesh({"data": 4}), -2),
        "ranks_per_node must be at least 1",
    ),
    "less than no rank": (lambda: network.draw(Network.of(NVLINK4), world_size=-3), "world_size must be at least 1"),
    "no such schedule": (lambda: schedule_widget.explore(schedule="zbv"), "no schedule 'zbv': there are naive"),
    "no such model": (lambda: memory_widget.explore(model="llama"), "no model 'llama': there are"),
    "too many lines": (lambda: style.lines(7), "tells 6 lines apart, not 7"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_it_is_refused_in_one_line(wrong: str) -> None:
    draw, words = REFUSED[wrong]
    with pytest.raises(BadInput, match=words) as refused:
        draw()
    assert "\n" not in str(refused.value)

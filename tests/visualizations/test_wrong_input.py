"""What cannot be drawn is refused in one line that says why."""

from collections.abc import Callable

import pytest
import torch

from reference.composition.mesh import Mesh
from reference.composition.published import FIGURE_13, SELENE
from reference.errors import BadInput
from reference.models import PRESETS
from reference.trace.contents import Contents
from tests.trace import programs as p
from visualizations import axes_talk, collective, cost, magnitudes, matrices, overlap, schedules, style, trade_offs

TRACE = p.trace(4, lambda rank: p.ring_all_reduce(rank, 100))
HELD = [Contents((((1,),),) * 13)] * 4

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no curve": (lambda: cost.draw({}, (1, 1e6), measured={"gloo": [(1e3, 1e-3)]}), "give one, or a title"),
    "no activity": (lambda: overlap.draw([[], []]), "no rank has an activity"),
    "no chart": (lambda: schedules.compare({}), "these have none"),
    "no action": (lambda: schedules.draw([[], []]), "no rank has computed anything"),
    "zeros": (lambda: magnitudes.draw({"bias": torch.zeros(3)}, torch.float16, title=""), "bias has no magnitudes"),
    "another mesh": (lambda: axes_talk.draw(TRACE, Mesh({"data": 8})), "arranges 8 ranks, and the trace is of 4"),
    "no such step": (lambda: collective.draw(TRACE, HELD, shown=[99]), "no step 99: the run has 0, 1, 2"),
    "no split": (lambda: trade_offs.seconds(FIGURE_13, [], SELENE), "no split to draw"),
    "no such weight": (lambda: matrices.weight("wq", PRESETS["llama3-8b"], 2), "no parameter wq: there are"),
    "too many lines": (lambda: style.lines(7), "tells 6 lines apart, not 7"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_it_is_refused_in_one_line(wrong: str) -> None:
    draw, words = REFUSED[wrong]
    with pytest.raises(BadInput, match=words) as refused:
        draw()
    assert "\n" not in str(refused.value)

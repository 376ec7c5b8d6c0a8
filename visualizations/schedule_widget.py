"""Pipelines of any shape, to play with: what a schedule waits and what it holds, at once.

A menu and sliders over one picture, the same that a simulated or a measured step gets.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, interleaved_even, naive, one_f_one_b
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate
from reference.zero_bubble.building_blocks import one_f_one_b_v, v_half, v_min
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v

from . import explorer
from .explorer import Explorer, Menu, Slider, named
from .schedule_steps import finding
from .schedules import draw
from .style import Picture

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {
        "naive": naive,
        "GPipe": gpipe,
        "1F1B": one_f_one_b,
        "ZB-H1": zb_h1,
        "ZB-H2": zb_h2,
        "ZB-V": zb_v,
        "1F1B-V": one_f_one_b_v,
        "V-Half": v_half,
        "V-Min": v_min,
        "DualPipe": dual_pipe,
        "DualPipeV": dual_pipe_v,
    }
)
"""By name, from ranks and micro-batches."""

LOOPED: Mapping[str, Callable[[int, int, int], Schedule]] = MappingProxyType(
    {"interleaved": interleaved, "interleaved-even": interleaved_even, "breadth-first": breadth_first}
)
"""By name, from ranks, micro-batches and how many stages a rank has."""


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the menu and the sliders say."""

    schedule: str = "1F1B"  # of `SCHEDULES` or `LOOPED`
    ranks: int = 4
    micro_batches: int = 8
    chunks: int = 2  # stages on a rank, where the schedule leaves that open
    forward: float = 1.0  # costs of one micro-batch, of all layers of a rank
    input: float = 1.0
    weight: float = 1.0
    message: float = 0.0  # from one rank to another

    @property
    def order(self) -> Schedule:
        """The schedule that is meant. Raises BadInput if there is none."""
        if self.schedule in LOOPED:
            return LOOPED[self.schedule](self.ranks, self.micro_batches, self.chunks)
        return named(SCHEDULES, self.schedule, "schedule")(self.ranks, self.micro_batches)

    @property
    def step(self) -> Simulation:
        """How it runs."""
        order = self.order
        share = order.ranks / max(map(len, order.routes))  # of a rank's layers, that a stage has
        halves = self.forward * share, self.input * share, self.weight * share
        return simulate(order, Costs(*halves, self.message))

    @property
    def idle(self) -> Collection[str]:
        """How many stages a rank has, where the schedule settles that."""
        return () if self.schedule in LOOPED else ("chunks",)

    def draw(self) -> Picture:
        """Which rank computes what when, and what each holds."""
        step = self.step
        said = finding(step)
        return draw(step, title=f"{self.schedule}: {said[0].lower()}{said[1:]}", unit="as costs", activations=True)


CONTROLS: Mapping[str, Menu | Slider] = MappingProxyType(
    {
        "schedule": Menu("schedule", (*SCHEDULES, *LOOPED)),
        "ranks": Slider("ranks", 1, 16, 1),
        "micro_batches": Slider("micro-batches", 1, 64, 1),
        "chunks": Slider("stages of a rank", 1, 4, 1),
        "forward": Slider("F, forward", 0.5, 3, 0.1),
        "input": Slider("I, input gradient", 0.5, 3, 0.1),
        "weight": Slider("W, weight gradient", 0.5, 3, 0.1),
        "message": Slider("message", 0, 2, 0.1),
    }
)
"""By field of `Choice`: its shape on the left, its costs on the right."""


def explore(**choice: Any) -> Explorer:
    """Bubble and memory of a pipeline; begin with any fields of `Choice`: `explore(schedule="ZB-V", ranks=8)`."""
    return Explorer(Choice(**choice), CONTROLS)

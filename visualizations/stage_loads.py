"""How much each stage of a pipeline has to do: its layers in a row, as long as they take.

One bar for each stage, and grey what it waits for the slowest one, which sets the pace of all. Where a model is cut in
several ways, these stand below each other on the same scale.
"""

from collections.abc import Mapping, Sequence
from math import inf

from matplotlib.axes import Axes

from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, figure, ink_on, lanes

OTHER = "#7AB8DE"  # a layer that is no block: forward, lighter

Cut = Sequence[range]
"""The layers of each stage."""

HIGH, BAR = 0.2, 0.78  # inches for a stage; the part of them that its bar takes
WIDE = 0.02  # of the width of the chart, below which a layer has no room for its number


def draw(
    costs: Sequence[float], cuts: Mapping[str, Cut], *, names: Mapping[int, str] | None = None, title: str = ""
) -> Picture:
    """The bars of all stages.

    Args:
        costs: of each layer, in any unit; that of the axis is a layer of cost 1.
        cuts: by name.
        names: of layers that are no blocks; all others are known by their number.
        title: the finding; by default how much longer than the mean the slowest stage takes.

    Raises:
        BadInput: if there is no cut, if one does not deal out all layers, or if layers take no time.
    """
    if not cuts:
        raise BadInput("there is no cut to draw: give one or more, by name")
    if not 0 < sum(costs) < inf:
        raise BadInput(f"layers take time, and all together these take {sum(costs):g}")
    for name, cut in cuts.items():
        if [layer for stage in cut for layer in stage] != list(range(len(costs))):
            raise BadInput(f"{name} does not deal out all of the {len(costs)} layers, in their order")
    rows = sum(map(len, cuts.values()))
    picture = figure(HIGH * rows + 0.3 * len(cuts) + 0.6, title or finding(costs, cuts))
    heights = [len(cut) for cut in cuts.values()]
    every = picture.subplots(len(cuts), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    longest = max(slowest(costs, cut) for cut in cuts.values())
    for axes, (name, cut) in zip(every, cuts.items(), strict=True):
        lanes(axes, {stage: f"stage {stage}" for stage in range(len(cut))}, SMALL)
        axes.set(xlim=(0, 1.02 * longest), ylim=(len(cut) - 0.5, -0.5))
        axes.set_title(f"{name}: the slowest stage takes {slowest(costs, cut):g}", fontsize=TEXT, loc="left", pad=3)
        axes.barh(range(len(cut)), slowest(costs, cut), height=BAR, color=Colour.IDLE)
        _bars(axes, costs, cut, names or {}, longest)
    every[-1].set_xlabel("time for a micro-batch (in blocks)", fontsize=TEXT, loc="left")
    return picture


def slowest(costs: Sequence[float], cut: Cut) -> float:
    """What the slowest stage takes."""
    return max(sum(costs[layer] for layer in stage) for stage in cut)


def finding(costs: Sequence[float], cuts: Mapping[str, Cut]) -> str:
    """The default title."""
    said = []
    for name, cut in cuts.items():
        said.append(f"{slowest(costs, cut) * len(cut) / sum(costs) - 1:.0%} ({name})")
    return f"The slowest stage takes longer than the mean by {', '.join(said)}"


def _bars(axes: Axes, costs: Sequence[float], cut: Cut, names: Mapping[int, str], longest: float) -> None:
    """A box for each layer, with its number or its name."""
    for row, stage in enumerate(cut):
        begin = 0.0
        for layer in stage:
            face = OTHER if layer in names else Colour.FORWARD
            look = {"color": face, "edgecolor": "white", "linewidth": 0.8}
            axes.barh(row, costs[layer], left=begin, height=BAR, **look)
            if costs[layer] > WIDE * longest:
                words = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "color": ink_on(face)}
                axes.text(begin + costs[layer] / 2, row, names.get(layer, str(layer)), **words)
            begin += costs[layer]

"""What a training does around the deaths of its ranks: a lane for each rank, and what its time went into.

A blue box is a step that counts. One that was done in vain, because training resumed from before it, is pale with a
vermilion edge; when it is done once more, it is hatched. Orange is a checkpoint, grey is recovery, a cross is a death.
"""

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from reference.errors import BadInput
from reference.resilience.lab.history import Deed, Stretch, TrainingHistory

from .style import SMALL, TEXT, WIDTH, Colour, Picture, figure, fits, lanes, legend_below, seconds_text, time_axis, tint

HALF = 0.36  # half of a lane's height
LOOKS = {
    Deed.STEP: {"facecolor": tint(Colour.FORWARD, 0.25), "edgecolor": "white"},
    Deed.AGAIN: {"facecolor": tint(Colour.FORWARD, 0.6), "edgecolor": Colour.FORWARD, "hatch": "////"},
    Deed.LOST: {"facecolor": tint(Colour.ERROR, 0.8), "edgecolor": Colour.ERROR},
    Deed.SAVE: {"facecolor": Colour.COMMUNICATION, "edgecolor": "white"},
    Deed.RECOVERY: {"facecolor": Colour.IDLE, "edgecolor": "white"},
}
WORDS = {
    Deed.STEP: "step",
    Deed.AGAIN: "step done again",
    Deed.LOST: "lost work",
    Deed.SAVE: "checkpoint",
    Deed.RECOVERY: "recovery",
}


def draw(history: TrainingHistory, *, between: tuple[float, float] | None = None, title: str = "") -> Picture:
    """The lanes of a training, rank 0 on top.

    Args:
        history: as it went.
        between: seconds from and to, if not all is to be seen.
        title: the finding; by default what its time went into.

    Raises:
        BadInput: if nothing happened between these seconds.
    """
    begin, end = between or (0.0, history.seconds)
    seen = [each for each in history.stretches if each.end > begin and each.begin < end]
    if not seen or begin >= end:
        raise BadInput(f"nothing happened from {begin:g} to {end:g} s: this training took {history.seconds:.3g} s")
    ranks = history.ranks
    rows = {rank: row for row, rank in enumerate(ranks)}
    picture = figure(len(ranks) * min(0.42, max(0.24, 4.0 / len(ranks))) + 1.15, title or finding(history))
    axes = lanes(picture.add_subplot(), {row: f"rank {rank}" for rank, row in rows.items()}, TEXT)
    axes.set(xlim=(begin, end), ylim=(len(ranks) - 0.45, -0.55))
    time_axis(axes, end - begin)
    _boxes(axes, seen, rows)
    _numbers(axes, seen, rows, (WIDTH - 1.2) / (end - begin), begin, end)
    crosses = [(at, rows[rank]) for at, rank in history.deaths if begin <= at <= end]
    look = {"marker": "X", "markersize": 10, "color": Colour.ERROR, "markeredgecolor": "white", "linestyle": "none"}
    if crosses:
        axes.plot(*zip(*crosses, strict=True), clip_on=False, zorder=6, **look)
    found = {each.deed for each in seen}
    marks = {WORDS[deed]: Patch(linewidth=0.8, **LOOKS[deed]) for deed in Deed if deed in found}
    legend_below(axes, marks | ({"death": Line2D([], [], **look)} if crosses else {}), spacing=1.1)
    return picture


def finding(history: TrainingHistory) -> str:
    """The default title."""
    parts = history.parts()
    words = {"useful": "useful", "checkpoints": "for checkpoints", "rework": "lost work", "down": "recovery"}
    said = ", ".join(f"{parts[part] / history.seconds:.0%} {word}" for part, word in words.items() if parts[part])
    deaths = len(history.deaths)
    times = {0: "No rank dies", 1: "One death"}.get(deaths, f"{deaths} deaths")
    return f"{times} in {seconds_text(history.seconds)}: {said}"


def _boxes(axes: Axes, stretches: Sequence[Stretch], rows: dict[int, int]) -> None:
    by_deed = defaultdict(list)
    for each in stretches:
        by_deed[each.deed].append(Rectangle((each.begin, rows[each.rank] - HALF), each.seconds, 2 * HALF))
    for deed, boxes in by_deed.items():
        width = 0.8 if len(stretches) < 400 else 0.2
        axes.add_collection(PatchCollection(boxes, linewidth=width, zorder=2, **LOOKS[deed]))


def _numbers(
    axes: Axes, stretches: Sequence[Stretch], rows: dict[int, int], inches: float, begin: float, end: float
) -> None:
    """The number of each step, where there is room in its box."""
    for each in stretches:
        if each.deed in (Deed.SAVE, Deed.RECOVERY) or not each.step or each.begin < begin or each.end > end:
            continue
        if fits(str(each.step), each.seconds * inches, 1):
            colour = "white" if each.deed is Deed.STEP else Colour.INK
            back = None if each.deed is not Deed.AGAIN else {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            place = {"ha": "center", "va": "center", "fontsize": SMALL, "zorder": 4, "bbox": back}
            axes.text((each.begin + each.end) / 2, rows[each.rank], str(each.step), color=colour, **place)

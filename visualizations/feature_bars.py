"""What each feature of the frameworks sends in a step and holds at most: bars, and marks for our formula and for us.

Left, bytes that the rank which sends most sends in a step; the line is the formula of our plan that does the same.
Right, bytes of tensors of the rank that holds most; the line is what our own run of that plan held.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reference.errors import BadInput
from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.rows import FeatureRow

from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, lanes, tint

OURS = "rankwise"
ROW, FOOT = 0.25, 1.2  # inches
SAME, OTHER = tint(Colour.COMMUNICATION, 0.55), Colour.COMMUNICATION
MEMORY = tint(Colour.FORWARD, 0.45)


def draw(rows: Sequence[FeatureRow], *, title: str = "") -> Picture:
    """Two bars for each row that was heard and of which there is a formula.

    Args:
        rows: of frameworks, and of our reference, which has bars of its own nowhere: it makes the lines on the right.
        title: the finding; by default how many send what the formula says.

    Raises:
        BadInput: if there is no such row.
    """
    ours = held_by_ours(rows)
    rows = [row for row in rows if row.calls and row.formula is not None and row.framework != OURS]
    if not rows:
        raise BadInput("none of these rows is of a framework's run that was heard and has a formula")
    picture = figure(len(rows) * ROW + FOOT, title or finding(rows))
    left, right = picture.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
    names = [f"{row.framework} {row.feature}" for row in rows]
    for axes in (left, right):
        lanes(axes, dict(enumerate(names))).set(ylim=(len(rows) - 0.4, -0.6))
    for place, row in enumerate(rows):
        _bar(left, place, row.sent, SAME if row.sent == row.formula else OTHER, row.formula)
        _bar(right, place, row.peak, MEMORY, ours.get(names[place]))
    _axis(left, "sent in a step", max(max(row.sent, row.formula) for row in rows))
    _axis(right, "held at most", max(max(row.peak, ours.get(name, 0)) for row, name in zip(rows, names, strict=True)))
    marks = {
        "as the formula says": Patch(facecolor=SAME),
        "otherwise": Patch(facecolor=OTHER),
        "formula; or held by ours": Line2D([], [], color=Colour.INK, linewidth=1.6),
    }
    look = {"frameon": False, "fontsize": SMALL, "labelcolor": Colour.INK, "handlelength": 1.6}
    picture.legend(marks.values(), marks.keys(), ncols=3, loc="outside lower center", **look)
    return picture


def finding(rows: Sequence[FeatureRow]) -> str:
    """The default title."""
    same = sum(row.sent == row.formula for row in rows)
    return f"{same} of {len(rows)} send what the formula says, to the byte; for the others there is a reason"


def held_by_ours(rows: Sequence[FeatureRow]) -> dict[str, int]:
    """By "framework feature", what our reference held at most by the same plan, in numbers of as many bytes."""
    of_plans = {}
    for row in rows:
        if row.framework == OURS:
            feature = FRAMEWORKS[OURS].features[row.feature]
            of_plans[feature.plan, feature.dtype, row.ranks] = row.peak
    found = {}
    for row in rows:
        feature = FRAMEWORKS[row.framework].features[row.feature]
        key = feature.plan, feature.dtype, row.ranks
        if row.framework != OURS and key in of_plans:
            found[f"{row.framework} {row.feature}"] = of_plans[key]
    return found


def _bar(axes: Axes, place: int, size: int, face: str, mark: int | None) -> None:
    axes.barh(place, size, 0.68, color=face, zorder=3)
    if mark is not None:
        axes.plot([mark, mark], [place - 0.42, place + 0.42], color=Colour.INK, linewidth=1.6, zorder=4)
    words = {"fontsize": SMALL, "color": Colour.FAINT, "va": "center", "zorder": 5}
    axes.annotate(bytes_text(size), (max(size, mark or 0), place), (4, 0), textcoords="offset points", **words)


def _axis(axes: Axes, words: str, most: int) -> None:
    axes.set_xlim(0, 1.3 * most)
    axes.xaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(words, fontsize=TEXT, loc="left")

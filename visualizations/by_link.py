"""Ways to do the same, by what they send and by the time that takes on links of several rates: bars with numbers."""

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, lanes, seconds_text, tint

ROW = 0.32  # inches
ROOM = 1.6  # of a chart, as a multiple of its longest bar: numbers stand behind the bars


def draw(sent: Mapping[str, float], seconds: Mapping[str, Mapping[str, float]], *, title: str, what: str) -> Picture:
    """Charts side by side, each with a bar for each way: first bytes, then seconds, a chart for each link.

    Args:
        sent: bytes by way.
        seconds: by link, of each way of `sent`.
        title: the finding.
        what: the bytes are, such as "leave a node".

    Raises:
        BadInput: if there are no ways, or a link lacks one.
    """
    if not sent or any(set(of_link) != set(sent) for of_link in seconds.values()):
        raise BadInput("there is nothing to compare: name some ways, and give the seconds of each on each link")
    picture = figure(ROW * len(sent) + 0.75, title)
    charts = picture.subplots(1, 1 + len(seconds), sharey=True, squeeze=False)[0]
    _bars(charts[0], sent, bytes_text, Colour.COMMUNICATION)
    charts[0].set_title(what, fontsize=TEXT, loc="left")
    for axes, (link, of_link) in zip(charts[1:], seconds.items(), strict=True):
        _bars(axes, {name: of_link[name] for name in sent}, seconds_text, tint(Colour.FORWARD, 0.35))
        axes.set_title(f"time, {link}", fontsize=TEXT, loc="left")
    return picture


def _bars(axes: Axes, values: Mapping[str, float], text: Callable[[float], str], colour: str) -> None:
    lanes(axes, dict(enumerate(values)), TEXT).grid(False)
    axes.barh(range(len(values)), list(values.values()), height=0.62, color=colour, zorder=3)
    for place, value in enumerate(values.values()):
        words = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": SMALL, "color": Colour.INK}
        axes.annotate(text(value), (value, place), va="center", **words)
    axes.set_xlim(0, ROOM * max(values.values()))
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.xaxis.set_major_locator(NullLocator())
    axes.spines[["bottom"]].set_visible(False)

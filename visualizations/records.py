"""What entries of a challenge reach, as multiples of a bound that none can be below."""

from collections.abc import Mapping

from .style import SMALL, TEXT, Colour, Picture, figure, lanes, write


def draw(times: Mapping[str, float], *, title: str = "") -> Picture:
    """A bar for each entry, the best one on top; the line is the bound.

    Args:
        times: of each entry, what it reaches over the bound.
        title: the finding; by default how far the best one is from the bound.
    """
    order = sorted(times, key=times.get)
    picture = figure(0.34 * len(order) + 0.8, title or f"The best entry takes {times[order[0]]:.2f} times the bound")
    axes = lanes(picture.add_subplot(), dict(enumerate(order)), SMALL)
    axes.barh(range(len(order)), [times[who] for who in order], height=0.6, color=Colour.COMMUNICATION)
    for row, who in enumerate(order):
        write(axes, times[who] + 0.02 * max(times.values()), row, f"{times[who]:.2f}", SMALL, Colour.INK, ha="left")
    axes.axvline(1, color=Colour.INK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    axes.set(xlim=(0, 1.1 * max(times.values())), ylim=(len(order) - 0.5, -0.5))
    axes.set_xlabel("times the bound (dashed)", fontsize=TEXT)
    return picture

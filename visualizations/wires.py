"""What each rank's link carries, for several programs under each other on one axis of time.

Each is replayed on the same modelled network, on which computing takes no time: lengths are bytes and latencies, and
nothing else. A box is a message in the lane of the rank that sends it; its letter and its shade say by which operation.
"""

from collections.abc import Mapping
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from reference.errors import BadInput
from reference.trace import Network, Timeline, Trace

from .style import (
    SMALL,
    TEXT,
    WIDTH,
    Colour,
    Picture,
    bytes_text,
    figure,
    fits,
    ink_on,
    lanes,
    legend_below,
    seconds_text,
    time_axis,
    tint,
)

LANE, HEAD, FOOT = 0.24, 0.36, 0.75  # inches
LOOKS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "all_reduce": ("R", "all-reduce", Colour.COMMUNICATION),
        "all_gather": ("G", "all-gather", tint(Colour.COMMUNICATION, 0.65)),
        "reduce_scatter": ("S", "reduce-scatter", "#8F6300"),
        "reduce": ("D", "reduce", "#5D4100"),
        "broadcast": ("B", "broadcast", tint(Colour.COMMUNICATION, 0.35)),
        "all_to_all": ("A", "all-to-all", "#3A2800"),
        "": ("P", "send", "#BF8400"),
    }
)
"""Letter, words and colour of an operation, by what a transfer is labelled with."""
OTHER = Colour.IDLE  # of an operation that a step has seldom


def draw(traces: Mapping[str, Trace], network: Network, *, title: str = "") -> Picture:
    """A panel for each program, by name.

    Args:
        traces: of a step each, of any numbers of ranks.
        network: on which they are replayed.
        title: the finding; by default which takes longest.

    Raises:
        BadInput: if there is no trace, or none of them sends anything.
    """
    timelines = {name: trace.replay(network) for name, trace in traces.items()}
    end = max((timeline.duration for timeline in timelines.values()), default=0.0)
    if not end:
        raise BadInput("nothing is sent in these traces, so there is nothing to draw")
    heights = [trace.world_size * LANE + HEAD for trace in traces.values()]
    picture = figure(sum(heights) + FOOT, title or finding(timelines))
    every = picture.subplots(len(traces), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, name in zip(every, traces, strict=True):
        _panel(axes, name, traces[name], timelines[name], end)
    time_axis(every[-1], end)
    seen = {transfer.label for timeline in timelines.values() for transfer in timeline.transfers}
    marks = {_words(label): Patch(facecolor=look[2]) for label, look in LOOKS.items() if label in seen}
    if seen - set(LOOKS):
        marks["others"] = Patch(facecolor=OTHER)
    legend_below(every[-1], marks, 1.0)
    return picture


def finding(timelines: Mapping[str, Timeline]) -> str:
    """The default title: the longest and the shortest."""
    longest, shortest = (pick(timelines, key=lambda name: timelines[name].duration) for pick in (max, min))
    return (
        f"{longest} talks for {seconds_text(timelines[longest].duration)}, {shortest} for "
        f"{seconds_text(timelines[shortest].duration)}"
    )


def _words(label: str) -> str:
    letter, words, _ = LOOKS[label]
    return f"{letter} {words}"


def _panel(axes: Axes, name: str, trace: Trace, timeline: Timeline, end: float) -> None:
    lanes(axes, {rank: f"rank {rank}" for rank in range(trace.world_size)})
    axes.set(xlim=(0, end), ylim=(trace.world_size - 0.5, -0.5))
    inches = (WIDTH - 0.9) / end
    for transfer in timeline.transfers:
        letter, _, face = LOOKS.get(transfer.label, ("", "", OTHER))
        wide = transfer.end - transfer.begin
        place = (transfer.begin, transfer.src - 0.4)
        axes.add_patch(Rectangle(place, wide, 0.8, facecolor=face, edgecolor="white", linewidth=0.5, zorder=2))
        if fits(letter, wide * inches, 0.8 * LANE):
            look = {"fontsize": SMALL, "ha": "center", "va": "center", "color": ink_on(face), "zorder": 3}
            axes.text(transfer.begin + wide / 2, transfer.src, letter, **look)
    calls = len(trace.events[0])
    said = f"{bytes_text(max(trace.bytes_sent))} from a rank, {calls} call{'s' if calls != 1 else ''}"
    axes.set_title(name, loc="left", fontsize=TEXT, fontweight="bold", color=Colour.INK, pad=3)
    axes.set_title(said, loc="right", fontsize=SMALL, color=Colour.FAINT, pad=3)

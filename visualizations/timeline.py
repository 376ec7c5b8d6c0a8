"""What each rank did when: a lane for each, and the messages between them.

The same picture for a measured run and for a replay on a modelled network. Orange is communication, light grey is
waiting, white is a rank's own work or its end. A message is an arrow from the moment it is sent to the moment it has
been received; thickness grows with bytes.
"""

from dataclasses import replace
from math import inf

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from reference.errors import BadInput
from reference.trace import Span, SpanKind, Timeline, Transfer

from .style import (
    SMALL,
    TEXT,
    WIDTH,
    Colour,
    Picture,
    bytes_text,
    count_axis,
    figure,
    lanes,
    legend_below,
    seconds_text,
    time_axis,
)

FACES = {SpanKind.COMMUNICATION: Colour.COMMUNICATION, SpanKind.WAITING: Colour.IDLE, SpanKind.STUCK: "#FFFFFF"}
WORDS = {SpanKind.COMMUNICATION: "communicates", SpanKind.WAITING: "waits", SpanKind.STUCK: "waits forever"}
HALF = 0.34  # half of a lane's height
MANY, TOO_MANY = 150, 2500  # messages: from here on without heads, from here on not drawn


def draw(timeline: Timeline, *, title: str = "", now: float | None = None, unit: str = "") -> Picture:
    """The lanes of a timeline, rank 0 on top, and its messages.

    Args:
        timeline: `trace.timeline()`, as measured, or `trace.replay(network)`.
        title: the finding; by default how long it took, and which rank waited how much.
        now: draw only what has happened by this second, and a line there.
        unit: what the seconds of the timeline stand for, where they are none: "steps".

    Raises:
        BadInput: if its duration is no time.
    """
    if not 0 <= timeline.duration < inf:
        raise BadInput(f"a timeline takes 0 s or more, and this one takes {timeline.duration:g} s")
    end = timeline.duration or 1e-6
    lane = min(0.46, max(0.2, 5.4 / max(timeline.world_size, 1)))
    picture = figure(timeline.world_size * lane + 1.05, title or finding(timeline))
    names = {rank: f"rank {rank}" for rank in range(timeline.world_size)}
    axes = lanes(picture.add_subplot(), names, SMALL if lane < 0.3 else TEXT)
    axes.set(xlim=(0, end), ylim=(timeline.world_size - 0.45, -0.55))
    if unit:
        count_axis(axes, unit)
    else:
        time_axis(axes, end)
    seen = end if now is None else now
    spans = [_until(span, now) for span in timeline.spans if span.begin < seen]
    transfers = [transfer for transfer in timeline.transfers if transfer.begin < seen]
    _lanes(axes, spans)
    _labels(axes, spans, (WIDTH - 1.7) / end)
    drawn = _messages(axes, transfers, now)
    _waiting(axes, timeline)
    if now is not None:
        axes.axvline(now, color=Colour.INK, linewidth=1)
    _legend(axes, timeline, drawn)
    return picture


def finding(timeline: Timeline) -> str:
    """The default title: how long it took, and how much of that was spent waiting."""
    stuck = sorted({span.rank for span in timeline.spans if span.kind is SpanKind.STUCK})
    if stuck:
        if len(stuck) == timeline.world_size:
            return "Deadlock: every rank waits for a message that never comes"
        return f"Stuck: {_ranks(stuck)} for a message that never comes"
    where = "" if timeline.title in ("", "link", "measured") else f" on {timeline.title}"
    text = f"{'Measured:' if timeline.title == 'measured' else 'Done after'} {seconds_text(timeline.duration)}{where}"
    if not timeline.duration or not any(timeline.waiting):
        return text + "; nobody waits"
    share = max(timeline.waiting) / timeline.duration
    return f"{text}; ranks wait {f'up to {share:.0%}' if share >= 0.005 else 'less than 1%'} of it"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} waits" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} wait"


def _until(span: Span, now: float | None) -> Span:
    """The part of a span that has happened."""
    return span if now is None or span.end <= now else replace(span, end=now)


def _lanes(axes: Axes, spans: list[Span]) -> None:
    for kind, face in FACES.items():
        boxes = [
            Rectangle((span.begin, span.rank - HALF), span.end - span.begin, 2 * HALF)
            for span in spans
            if span.kind is kind
        ]
        edge = Colour.ERROR if kind is SpanKind.STUCK else "white"
        style = (
            {"hatch": "////", "linewidth": 0.8}
            if kind is SpanKind.STUCK
            else {"linewidth": 0.6 if len(boxes) < 400 else 0}
        )
        axes.add_collection(PatchCollection(boxes, facecolor=face, edgecolor=edge, zorder=1, **style))


def _labels(axes: Axes, spans: list[Span], inches: float) -> None:
    """What a rank waits for, where there is room for the words."""
    for span in spans:
        room = (span.end - span.begin) * inches / 0.075  # letters
        words = next((words for words in (f"waits: {span.label}", span.label) if len(words) <= room), "")
        if span.kind is SpanKind.COMMUNICATION or not words:
            continue
        box = {"facecolor": FACES[span.kind], "edgecolor": "none", "pad": 1.2}  # so that no message runs through
        style = {"ha": "center", "va": "center", "fontsize": SMALL, "zorder": 4, "bbox": box}
        colour = Colour.ERROR if span.kind is SpanKind.STUCK else Colour.FAINT
        axes.text((span.begin + span.end) / 2, span.rank, words, color=colour, **style)


def _messages(axes: Axes, transfers: list[Transfer], now: float | None) -> bool:
    """Arrows from lane to lane. True if they were drawn."""
    if len(transfers) > TOO_MANY:
        return False
    sizes = {transfer.bytes for transfer in transfers}
    thin = 1 if len(transfers) <= MANY else 0.6
    lines, widths = [], []
    for transfer in transfers:
        way = HALF / 2 if transfer.dst > transfer.src else -HALF / 2
        start, stop = (transfer.begin, transfer.src + way), (transfer.end, transfer.dst - way)
        if now is not None and transfer.end > now:
            share = (now - transfer.begin) / (transfer.end - transfer.begin)
            stop = (now, start[1] + share * (stop[1] - start[1]))
        width = thin * thickness(transfer.bytes, sizes)
        if len(transfers) > MANY:
            lines.append((start, stop))
            widths.append(width)
            continue
        head = f"-|>,head_length={2.4 + width},head_width={0.9 + 0.7 * width}"
        style = {"arrowstyle": head, "linewidth": width, "color": Colour.INK, "shrinkA": 0, "shrinkB": 0, "zorder": 3}
        axes.add_patch(FancyArrowPatch(start, stop, clip_on=False, in_layout=False, **style))  # between lanes: inside
    axes.add_collection(LineCollection(lines, linewidths=widths, colors=Colour.INK, zorder=3, capstyle="butt"))
    return True


def thickness(size: int, sizes: set[int]) -> float:
    """Points of a line for a message of `size` bytes among messages of `sizes`."""
    most = max(sizes)
    return 1.0 if len(sizes) == 1 or not most else 0.6 + 1.6 * (size / most) ** 0.5


def _waiting(axes: Axes, timeline: Timeline) -> None:
    """At the end of each lane, the share of the time that its rank waits."""
    if not any(timeline.waiting):
        return
    words = {rank: f"{t / timeline.duration:.0%}" for rank, t in enumerate(timeline.waiting)}
    for y, share in {-0.62: "waits", **words}.items():
        place = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(1.008, y, share, fontsize=SMALL, color=Colour.FAINT, **place)


def _legend(axes: Axes, timeline: Timeline, drawn: bool) -> None:
    marks: list[Artist] = []
    for kind, face in FACES.items():
        if any(span.kind is kind for span in timeline.spans):
            edge, hatch = (Colour.ERROR, "////") if kind is SpanKind.STUCK else ("none", None)
            marks.append(Patch(facecolor=face, edgecolor=edge, hatch=hatch, label=WORDS[kind]))
    sizes = {transfer.bytes for transfer in timeline.transfers}
    if sizes and not drawn:
        marks.append(Line2D([], [], linewidth=0, label=f"{len(timeline.transfers)} messages, too many to draw"))
    for size in sorted({min(sizes), max(sizes)}) if sizes and drawn else ():
        width = thickness(size, sizes)
        marks.append(Line2D([], [], color=Colour.INK, linewidth=width, label=f"message, {bytes_text(size)}"))
    legend_below(axes, {mark.get_label(): mark for mark in marks})

"""A collective, step by step: which rank holds whose data, and which messages made it so.

What is drawn is what happened. `reference.trace.contents.observe` ran the collective on tensors that say whose they
are, and noted what each rank held before each of its calls; the trace says which message belongs to which step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path

from reference.errors import BadInput
from reference.trace import Trace
from reference.trace.contents import Contents, Counts

from .style import SMALL, WIDTH, Colour, Picture, bytes_text, canvas, fits

Held = tuple[tuple[Counts | None, ...], ...]
"""[rank][chunk]: how often each rank's data is in it."""


@dataclass(frozen=True)
class Arrow:
    """A message of a step."""

    src: int
    dst: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """The messages of one step, and what each rank holds after it. Step 0 is the beginning."""

    number: int
    arrows: tuple[Arrow, ...]
    held: Held


def steps(trace: Trace, contents: Sequence[Contents]) -> list[Step]:
    """The run as a list of steps, the beginning first.

    Args:
        trace: of one collective made of sends and receives. What a native collective does inside can't be seen; it is
            drawn as one step without messages.
        contents: of each rank, from `observe`.

    Raises:
        BadInput: if there are contents of other ranks than the trace is of.
    """
    if len(contents) != trace.world_size:
        raise BadInput(f"the trace is of {trace.world_size} ranks, and there are contents of {len(contents)}")
    messages = [message for message in trace.messages if not message.algorithm]
    first_step: dict[tuple[int, int], int] = {}
    for message in messages:
        for event in (message.send, message.recv):
            key = (event.rank, event.posted)
            first_step[key] = min(message.step, first_step.get(key, message.step))
    numbers = sorted({message.step for message in messages})
    found = [Step(0, (), tuple(seen.before[0] for seen in contents))]
    for index, number in enumerate(numbers or [1]):
        arrows = tuple(Arrow(m.src, m.dst, m.bytes) for m in messages if m.step == number)
        last = index == len(numbers or [1]) - 1
        held = tuple(
            seen.before[-1 if last else _calls_until(number, trace, first_step, rank)]
            for rank, seen in enumerate(contents)
        )
        found.append(Step(number, arrows, held))
    return found


def _calls_until(step: int, trace: Trace, first_step: dict[tuple[int, int], int], rank: int) -> int:
    """How many calls the rank made before the first that belongs to a later step."""
    later = (i for i, event in enumerate(trace.events[rank]) if first_step.get((rank, event.posted), 0) > step)
    return next(later, -1)


def draw(trace: Trace, contents: Sequence[Contents], *, title: str = "", shown: Sequence[int] | None = None) -> Picture:
    """The steps as small multiples, left to right: a row for each rank, a column for each chunk.

    Args:
        trace, contents: as for `steps`.
        title: the finding; by default the number of steps and of bytes.
        shown: numbers of the steps to draw, 0 for the beginning; by default all, or as many as can be read.

    Raises:
        BadInput: if some of those steps are none of the run's, or if there is none, or if a tensor has more chunks
            than there is room for.
    """
    every = steps(trace, contents)
    numbers = [step.number for step in every]
    if missing := set(shown or ()) - set(numbers):
        raise BadInput(f"there is no step {min(missing)}: the run has {', '.join(map(str, numbers))}")
    if shown is not None and not shown:
        raise BadInput(f"there is no step to draw: the run has {', '.join(map(str, numbers))}")
    if (chunks := len(every[0].held[0])) > MOST_CHUNKS:
        raise BadInput(f"{chunks} chunks do not fit side by side in one picture: observe at most {MOST_CHUNKS}")
    plan = _Plan.of(every, len(numbers) if shown is None else len(shown))
    chosen = set(_some(numbers, plan.room) if shown is None else shown)
    pairs = [(step, every[max(0, i - 1)]) for i, step in enumerate(every) if step.number in chosen]
    picture, axes = canvas(plan.height(len(pairs)) + FOOT, title or finding(trace))
    panels = _Panels(axes, trace.world_size, plan)
    for place, (step, before) in enumerate(pairs):
        panels.draw(place, step, before, numbers[-1])
    panels.legend(plan.height(len(pairs)) + FOOT / 2)
    return picture


def finding(trace: Trace) -> str:
    """The default title: what the collective took."""
    sent = trace.bytes_sent
    most = bytes_text(max(sent))
    busiest = [rank for rank, size in enumerate(sent) if size == max(sent)]
    if len(busiest) == trace.world_size:
        who = f"each rank sends {most}"
    elif len(busiest) == 1:
        who = f"rank {busiest[0]} sends most, {most}"
    else:
        who = f"ranks {', '.join(map(str, busiest))} send {most} each"
        who += ", the others less" if sum(sent) > len(busiest) * max(sent) else ""
    native = "".join(f"{op} counted as {name}: " for op, name in trace.counted_as.items())
    return f"{native}{trace.steps} step{'s' * (trace.steps != 1)}; {who}"


LABELS, HEAD, GUTTER, FOOT = 0.7, 0.52, 0.45, 0.38  # inches: names of ranks, headings, messages, legend
MOST_HEIGHT = 7.5
SMALLEST, EASY = 0.2, 0.36  # width of a cell that can be read at all, and with ease
MOST_CHUNKS = int((WIDTH - LABELS - GUTTER) / SMALLEST)
LINE, LEGEND = 0.18, 100  # height of a line of the legend, and letters in it


@dataclass(frozen=True)
class _Plan:
    """How panels are laid out, in inches."""

    cell: tuple[float, float]
    columns: int  # of panels
    panel: tuple[float, float]

    @property
    def room(self) -> int:
        """How many panels fit."""
        return self.columns * max(1, int(MOST_HEIGHT / self.panel[1]))

    def height(self, panels: int) -> float:
        return -(-panels // self.columns) * self.panel[1]

    @classmethod
    def of(cls, every: Sequence[Step], panels: int) -> "_Plan":
        """Cells that are easy to read, in as few rows of panels as possible; where that is too much, smaller ones."""
        ranks, chunks = len(every[0].held), len(every[0].held[0])
        plans = []
        for columns in range(1, panels + 1):
            width = min(0.72, ((WIDTH - LABELS) / columns - GUTTER) / chunks)
            height = min(0.9 * width, 0.28)
            if width >= SMALLEST or columns == 1:
                plans.append(cls((width, height), columns, (chunks * width + GUTTER, ranks * height + HEAD)))
        fitting = [plan for plan in plans if plan.room >= panels]
        return max(fitting or plans[-1:], key=lambda plan: (min(plan.cell[0], EASY), plan.columns))


def _some(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers: the first few, then ever larger leaps, then the last."""
    if len(numbers) <= most:
        return list(numbers)
    head = list(numbers[: max(1, most // 2)])
    rest = numbers[len(head) :]
    picks = most - len(head)
    return head + [rest[round((i + 1) * len(rest) / picks) - 1] for i in range(picks)]


class _Panels:
    """Draws on axes whose unit is the inch."""

    def __init__(self, axes: Axes, ranks: int, plan: _Plan) -> None:
        self.axes, self.ranks, self.plan = axes, ranks, plan
        self.width, self.height = plan.cell
        self.said: set[str] = set()  # what cells say: the legend explains it

    def draw(self, place: int, step: Step, before: Step, last: int) -> None:
        """One panel: heading, cells, messages."""
        row, column = divmod(place, self.plan.columns)
        left = LABELS + column * self.plan.panel[0]
        top = row * self.plan.panel[1] + HEAD
        self._head(left, top, step, last)
        if column == 0:
            for rank in range(self.ranks):
                self._text(left - 0.08, top + (rank + 0.5) * self.height, f"rank {rank}", SMALL, Colour.INK, ha="right")
        for rank, held in enumerate(step.held):
            for chunk, counts in enumerate(held):
                x, y = left + chunk * self.width, top + rank * self.height
                self._cell(x, y, counts)
                if step is not before and counts != before.held[rank][chunk]:
                    self._outline(x, y, self.width, self.height)
        for arrow in step.arrows:
            self._arrow(left + len(step.held[0]) * self.width + 0.03, top, arrow)

    def _head(self, left: float, top: float, step: Step, last: int) -> None:
        name = f"step {step.number}/{last}" if step.arrows else "after" if step.number else "beginning"
        self._text(left, top - 0.38, name, SMALL, Colour.INK, ha="left", weight="bold")
        if step.arrows:
            self._text(left, top - 0.22, _load(step.arrows), SMALL, Colour.FAINT, ha="left")
        chunks = len(step.held[0])
        for chunk in range(chunks if chunks > 1 else 0):
            self._text(left + (chunk + 0.5) * self.width, top - 0.075, str(chunk), SMALL, Colour.FAINT)

    def _cell(self, x: float, y: float, counts: Counts | None) -> None:
        texts, share, wrong = cell(counts, self.ranks)
        words = next((text for text in texts if fits(text, self.width, self.height)), texts[-1])
        self.said.add(words)
        light = 1 - 0.09 * (share > 0) - 0.63 * share
        face = Colour.ERROR if wrong else (light, light + 0.015 * share, light + 0.04 * share)
        edge = Colour.LINE if share == 0 else "white"
        above = 2.5 if share == 0 else 1 + share  # frames of empty cells above white edges of full ones
        box = Rectangle((x, y), self.width, self.height, facecolor=face, edgecolor=edge, zorder=above)
        self.axes.add_patch(box)
        ink = "white" if wrong or light < 0.55 else Colour.INK
        self._text(x + self.width / 2, y + self.height / 2, words, SMALL, ink)

    def _outline(self, x: float, y: float, width: float, height: float) -> None:
        box = Rectangle((x + 0.015, y + 0.015), width - 0.03, height - 0.03, fill=False, linewidth=1.6, zorder=3)
        box.set_edgecolor(Colour.COMMUNICATION)
        self.axes.add_patch(box)

    def _arrow(self, x: float, top: float, arrow: Arrow) -> None:
        """An arc beside the cells, from the sender's row to the receiver's; the farther they are, the wider."""
        begin, end = top + (arrow.src + 0.72) * self.height, top + (arrow.dst + 0.28) * self.height
        bulge = (0.1 + (GUTTER - 0.24) * (abs(arrow.dst - arrow.src) / max(self.ranks - 1, 1)) ** 0.7) * 4 / 3
        curve = Path([(x, begin), (x + bulge, begin), (x + bulge, end), (x, end)], [Path.MOVETO] + [Path.CURVE4] * 3)
        head = "-|>,head_length=2.6,head_width=1.5"
        patch = FancyArrowPatch(path=curve, arrowstyle=head, color=Colour.COMMUNICATION, linewidth=1.1, zorder=4)
        self.axes.add_patch(patch)

    def legend(self, y: float) -> None:
        """What the marks mean, below everything."""
        single = min((text for text in self.said if text.isdigit()), key=int, default="")
        sums = sorted(text for text in self.said if text[:1] == "Σ" and len(text) > 1)
        twice = sorted(text for text in self.said if "×" in text)
        words = [f"{single}: rank {single}'s data"] if single else []
        words += ["0+1: their sum"] if any("+" in text for text in self.said) else []
        words += [f"{sums[0]}: sum of {sums[0][1:]} ranks'"] if sums else []
        words += ["Σ: sum of everybody's"] if "Σ" in self.said else []
        words += (
            [f"{twice[0]}: rank {twice[0].partition('×')[2]}'s, {twice[0].partition('×')[0]} times"] if twice else []
        )
        words += ["~: pieces of several kinds"] if "~" in self.said else []
        lines = ["changed in this step"]
        for each in words:
            longer = f"{lines[-1]}     {each}"
            lines[-1:] = [longer] if len(longer) <= LEGEND else [lines[-1], each]
        tops = [y + LINE * (i - (len(lines) - 1) / 2) for i in range(len(lines))]
        self._outline(LABELS, tops[0] - LINE / 2, 0.2, LINE)
        for top, line in zip(tops, lines, strict=True):
            self._text(LABELS + 0.27, top, line, SMALL, Colour.FAINT, ha="left")

    def _text(
        self, x: float, y: float, words: str, size: float, colour: str, ha: str = "center", weight: str = "normal"
    ) -> None:
        style = {"fontsize": size, "color": colour, "fontweight": weight, "ha": ha, "va": "center_baseline"}
        self.axes.text(x, y, words, zorder=5, **style)


def cell(counts: Counts | None, ranks: int) -> tuple[tuple[str, ...], float, bool]:
    """What a cell may say, best first; how dark it is, 0 to 1; and whether some data is in it more than once."""
    if counts is None:
        return ("~",), 0.3, False
    present = [rank for rank, count in enumerate(counts) if count]
    wrong = [rank for rank in present if counts[rank] > 1 or rank >= ranks]
    if wrong:
        return (f"{counts[wrong[0]]}×{wrong[0]}",), 1.0, True
    share = len(present) / ranks
    if len(present) <= 1:
        return ("".join(map(str, present)),), share, False
    if len(present) == ranks:
        return ("Σ",), share, False
    return ("+".join(map(str, present)), f"Σ{len(present)}"), share, False


def _load(arrows: Sequence[Arrow]) -> str:
    """How many messages of how many bytes."""
    sizes = {arrow.bytes for arrow in arrows}
    if len(sizes) == 1:
        return f"{len(arrows)} × {bytes_text(sizes.pop())}"
    return f"{len(arrows)}: {bytes_text(sum(arrow.bytes for arrow in arrows))} in all"

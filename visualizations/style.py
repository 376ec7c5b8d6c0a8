"""How every picture of this course looks: one palette, one width, one way to write numbers.

Colours are those of Okabe & Ito 2008, which colour-blind readers distinguish, with one meaning each. What must be
distinct in greyscale, too, also differs in dash, marker, hatch or a printed number.

Nothing here touches pyplot: a picture is a value. It is shown when a cell returns it, once, and never blocks.
"""

import base64
import html
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from reference.errors import BadInput

WIDTH = 8.0  # inches; at 100 dots per inch as wide as the text of a notebook
DPI = 100  # at which sizes are meant; pixels are twice as fine, for sharp screens
SMALL, TEXT, TITLE = 9.0, 9.5, 11.0  # points; nothing is smaller than SMALL
MARGIN, LEADING = 0.1, 0.18  # inches


class Colour(StrEnum):
    """What a colour means."""

    FORWARD = "#0072B2"
    BACKWARD = "#009E73"  # gradient of the input
    WEIGHT_GRADIENT = "#004D47"
    OPTIMIZER = "#CC79A7"
    COMMUNICATION = "#E69F00"
    IDLE = "#D9D9D9"
    ERROR = "#D55E00"
    INK = "#222222"  # text, and messages where they cross other things
    FAINT = "#767676"  # text that supports; readable on white
    LINE = "#BBBBBB"


# Lines of a chart, in order; each has its own dash and marker, so that it is known without its colour. In a chart of
# lines a colour means nothing but its line.
LINES: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#E69F00", (0, (6, 1.5)), "s"),
    ("#009E73", (0, (3, 1.2)), "^"),
    ("#CC79A7", (0, (6, 1.5, 1, 1.5)), "D"),
    ("#222222", (0, (1, 1.2)), "v"),
    ("#56B4E9", (0, (8, 2, 1, 1, 1, 2)), "P"),
)


def lines(count: int) -> tuple[tuple[str, Any, str], ...]:
    """Colour, dash and marker of each of the lines of a chart. Raises BadInput for more than can be distinguished."""
    if count > len(LINES):
        raise BadInput(f"a chart tells {len(LINES)} lines apart, not {count}: draw two charts")
    return LINES[:count]


class Picture(Figure):
    """A figure that notebooks show by themselves, sharp and at the width it was made for."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        return shown(self.png(), self.alt, repr(self))

    @property
    def alt(self) -> str:
        """The picture for readers who can't see it: its title, what its axes measure and what its marks mean."""
        parts = [" ".join(self.get_suptitle().split()) or "a picture"]
        legends = [*self.legends, *(axes.get_legend() for axes in self.axes)]
        said = {
            "from left to right": [axes.get_xlabel() for axes in self.axes],
            "upwards": [axes.get_ylabel() for axes in self.axes],
            "marks": [text.get_text() for legend in legends if legend for text in legend.get_texts()],
        }
        for what, words in said.items():
            if words := [" ".join(each.split()) for each in dict.fromkeys(words) if each.strip()]:
                parts.append(f"{what}: {', '.join(words)}")
        return "; ".join(parts)

    def png(self) -> bytes:
        """The picture as a PNG file, two pixels to a dot; the same bytes each time."""
        palette = {"colors": 256, "method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
        drawn = Image.fromarray(self.pixels()).convert("RGB").quantize(**palette)
        file = io.BytesIO()
        drawn.save(file, "PNG", compress_level=6)  # a third of the bytes of all colours
        return file.getvalue()

    def pixels(self) -> np.ndarray:
        """The picture as it is drawn, two pixels to a dot: [rows, columns, RGBA] of 8 bits."""
        self.set_dpi(2 * DPI)  # words are not exactly twice as wide: the layout has to see them as they are drawn
        if (engine := self.get_layout_engine()) is not None:
            engine.execute(self)
            self.set_layout_engine("none")  # a second layout would begin from the first, and differ
        canvas = FigureCanvasAgg(self)
        canvas.draw()  # savefig would draw it twice
        self.set_dpi(DPI)
        return np.asarray(canvas.buffer_rgba())

    def save(self, path: Path) -> None:
        """Write the PNG file."""
        path.write_bytes(self.png())

    def __repr__(self) -> str:
        return f"<Picture: {' '.join(self.get_suptitle().split())}>"

    __str__ = __repr__


def shown(png: bytes, alt: str, words: str = "") -> tuple[dict[str, str], dict[str, Any]]:
    """Data and metadata of a PNG file of ours for a notebook: as an image, and as HTML, which alone can hold `alt`."""
    width, height = (int.from_bytes(png[at : at + 4], "big") // 2 for at in (16, 20))  # two pixels to a dot
    encoded = base64.b64encode(png).decode()
    size = f'width="{width}" height="{height}" style="max-width:100%;height:auto"'
    image = f'<img alt="{html.escape(alt)}" {size} src="data:image/png;base64,{encoded}">'
    data = {"text/plain": words or alt, "text/html": image, "image/png": encoded}
    return data, {"image/png": {"width": width, "height": height, "alt": alt}}


def figure(height: float, title: str) -> Picture:
    """An empty picture, `height` inches high. `title` says what it shows to be true; long ones are wrapped."""
    lines = _wrapped(title)
    head = MARGIN + LEADING * len(lines)
    height += LEADING * (len(lines) - 1)
    picture = Picture(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    picture.get_layout_engine().set(w_pad=0.08, h_pad=0.06, rect=(0, 0, 1, 1 - head / height))
    _entitle(picture, lines)
    return picture


def canvas(height: float, title: str) -> tuple[Picture, Axes]:
    """A picture to draw on by hand: axes of `WIDTH` by `height` inches below the title, x to the right, y down."""
    lines = _wrapped(title)
    head = MARGIN + LEADING * len(lines) + 0.08
    picture = Picture(figsize=(WIDTH, height + head), facecolor="white")
    _entitle(picture, lines)
    axes = picture.add_axes((0, 0, 1, height / (height + head)))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return picture, axes


def _wrapped(title: str) -> list[str]:
    """Lines as long as the picture is wide, or as many shorter ones of about the same length."""
    letters = int(WIDTH * 10.5)
    while any(width_of(line) > WIDTH - 2 * MARGIN for line in _lines(title, letters)):
        letters -= 1
    lines = _lines(title, letters)
    balanced = _lines(title, min(letters, len(title) // max(len(lines), 1) + 8))
    return (balanced if len(balanced) == len(lines) else lines) or [""]


def _lines(title: str, letters: int) -> list[str]:
    return textwrap.wrap(title, width=letters, break_on_hyphens=False)


@lru_cache(maxsize=4096)
def width_of(line: str, size: float = TITLE, weight: str = "bold") -> float:
    """How wide a line is; by default, one of a title."""
    if not line.strip():
        return 0.0
    line = line.replace("$", r"\$")  # no mathematics
    return TextPath((0, 0), line, size, prop=FontProperties(weight=weight)).get_extents().x1 / 72


def fitted(words: str, inches: float, size: float = TEXT, weight: str = "normal") -> str:
    """Words, as many of their letters as there is room for."""
    width = width_of(words, size, weight)
    return words if width <= inches else words[: int(len(words) * inches / width) - 2] + "…"


def fits(words: str, width: float, height: float, size: float = SMALL) -> bool:
    """Whether words on one line, a number in its box for one, have room in so many inches, with air around them."""
    return width_of(words, size, "normal") + 0.03 <= width and 0.76 * size / 72 + 0.02 <= height


def _entitle(picture: Picture, lines: Sequence[str]) -> None:
    width, height = picture.get_size_inches()
    words = {"fontsize": TITLE, "color": Colour.INK, "fontweight": "bold", "ha": "left", "va": "top"}
    words["parse_math"] = False  # $2 and $3 are prices
    picture.suptitle("\n".join(lines), x=MARGIN / width, y=1 - MARGIN / height, **words)


def plain(axes: Axes) -> Axes:
    """A chart with two thin axes, a light grid and readable numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(Colour.LINE)
    axes.tick_params(labelsize=SMALL, color=Colour.LINE, labelcolor=Colour.INK, which="both")
    axes.grid(True, color="#ECECEC", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def lanes(axes: Axes, names: Mapping[float, str], size: float = SMALL) -> Axes:
    """A chart of lanes, one below the other: their names, by height, and no line beside them."""
    plain(axes).grid(False, axis="y")
    axes.spines[["left"]].set_visible(False)
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0, labelsize=size)
    return axes


def legend_below(axes: Axes, marks: Mapping[str, Any], spacing: float = 1.4) -> None:
    """What marks say, at the end of the line below the x axis, or in lines below that. Marks in a tuple stand together.

    The label of the x axis has to be there.
    """
    if not marks:
        return
    look = {"frameon": False, "fontsize": SMALL, "labelcolor": Colour.INK, "handlelength": 1.6}
    look |= {"columnspacing": spacing, "handler_map": {tuple: HandlerTuple(None, 0)}}
    widths = [width_of(label, SMALL, "normal") + (2.4 + spacing) * SMALL / 72 for label in marks]
    room = WIDTH - 1.2
    beside = sum(widths) < room - width_of(axes.get_xlabel(), TEXT, "normal") - 0.2
    rows = 1 if beside else ceil(len(marks) * max(widths) / room) if sum(widths) > room else 1
    place = {"loc": "upper right", "bbox_to_anchor": (1, 0), "borderaxespad": 2.4 if beside else 4.2}
    axes.legend(marks.values(), marks.keys(), ncols=ceil(len(marks) / rows), **look, **place)


def write(
    axes: Axes, x: float, y: float, words: str, size: float, colour: str = Colour.FAINT, ha: str = "center", **look: Any
) -> None:
    """Words at a place, in the middle of their height, above what is drawn there."""
    axes.text(x, y, words, fontsize=size, color=colour, ha=ha, **{"va": "center", "zorder": 5, **look})


def tint(colour: str, white: float) -> str:
    """A colour with so much white in it, from 0 to 1."""
    return to_hex([part + white * (1 - part) for part in to_rgb(colour)])


def ink_on(face: str) -> str:
    """The colour of words that can be read on this one."""
    red, green, blue = to_rgb(face)
    return Colour.INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def amount_axis(axes: Axes, words: str, text: Callable[[float], str]) -> None:
    """Label the y axis, with few round numbers, written by `text`."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: text(amount)))
    axes.set_ylabel(words, fontsize=TEXT)


def time_axis(axes: Axes, duration: float) -> None:
    """Label the x axis, which holds seconds, in the unit that suits `duration`."""
    scale, unit = _time_unit(duration)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / scale:g}" if abs(x) > scale * 1e-9 else "0"))
    axes.set_xlabel(f"time ({unit})", fontsize=TEXT, color=Colour.INK, loc="left")


def count_axis(axes: Axes, unit: str) -> None:
    """Label the x axis, which counts units of time."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel(f"time ({unit})", fontsize=TEXT, color=Colour.INK, loc="left")


def bytes_text(size: float) -> str:
    """`size` bytes for a reader: 1 KB is 1000 B."""
    return _scaled(size, ("B", "KB", "MB", "GB", "TB", "PB"))


def bandwidth_text(rate: float) -> str:
    """`rate` bytes per second for a reader."""
    return bytes_text(rate) + "/s"


def seconds_text(seconds: float) -> str:
    """A duration for a reader, in three digits; from 1000 s on, in whole seconds."""
    scale, unit = _time_unit(seconds)
    return f"{_digits(seconds / scale)} {unit}"


def _time_unit(seconds: float) -> tuple[float, str]:
    units: Sequence[tuple[float, str]] = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    return next((unit for unit in units if abs(seconds) >= unit[0] * 0.9995), units[0] if seconds == 0 else units[-1])


def _scaled(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{_digits(value)} {unit}"
        value /= 1000
    return f"{_digits(value)} {units[-1]}"


def _digits(value: float) -> str:
    """Three significant digits, or all before the point; no exponent, no trailing zeros."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return np.format_float_positional(value, precision=3, unique=False, fractional=False, trim="-")

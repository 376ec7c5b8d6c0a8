"""How large numbers are, and what a floating-point format makes of them: nothing, something, itself, or infinity.

A format with few bits for the exponent has an end on either side. Below its smallest normal number it gives digits up
one by one; below half of its smallest number there is nothing left; above its largest everything is infinite. A format
without infinity, such as float8_e4m3fn, makes its largest number of it, or NaN, as the conversion decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reference.errors import BadInput

from .style import SMALL, TEXT, WIDTH, Colour, Picture, figure, plain, write

PANEL = 1.55  # inches
NARROW = 0.5  # inches: a region of less has no room for its words
MOST_TICKS = 10


@dataclass(frozen=True)
class Region:
    """Magnitudes from `begin` to `end` that meet one fate."""

    name: str
    begin: float
    end: float
    colour: Colour


def regions(dtype: torch.dtype) -> tuple[Region, ...]:
    """What becomes of a number of each size, from the smallest to the largest."""
    info = torch.finfo(dtype)
    bits = {
        "become 0": (info.smallest_normal * info.eps / 2, Colour.ERROR),
        "lose digits": (info.smallest_normal, Colour.FAINT),
        "stay": (info.max, Colour.WEIGHT_GRADIENT),
        _too_large(dtype): (float("inf"), Colour.ERROR),
    }
    found, begin = [], 0.0
    for name, (end, colour) in bits.items():
        found.append(Region(name, begin, end, colour))
        begin = end
    return tuple(found)


def _too_large(dtype: torch.dtype) -> str:
    """What becomes of a number beyond the largest one."""
    made = torch.tensor(float("inf")).to(dtype).item()
    return "become infinite" if made == float("inf") else f"become {made:g}".replace("nan", "NaN")


def shares(magnitudes: NDArray[np.floating], dtype: torch.dtype) -> dict[str, float]:
    """Which share of these magnitudes, all above 0, lies in each region."""
    return {
        region.name: float(np.mean((magnitudes > region.begin) & (magnitudes <= region.end)))
        for region in regions(dtype)
    }


def draw(panels: Mapping[str, torch.Tensor], dtype: torch.dtype, *, title: str) -> Picture:
    """A histogram over powers of two for each panel, one below the other, with the regions of `dtype` behind them.

    Args:
        panels: numbers by name, of any shape; zeros are left out, and signs.
        dtype: float16, say.
        title: the finding.

    Raises:
        BadInput: if some panel has no number but zeros, or has NaN.
    """
    if lost := [name for name, numbers in panels.items() if numbers.isnan().any()]:
        raise BadInput(f"{lost[0]} has NaN, which has no magnitude: draw numbers[~numbers.isnan()]")
    values = {name: _magnitudes(numbers) for name, numbers in panels.items()}
    if empty := [name for name, own in values.items() if not len(own)]:
        raise BadInput(f"{empty[0]} has no magnitudes to draw: it has no number but zeros")
    top = np.log2(torch.finfo(dtype).max) + 5
    bottom = np.log2(torch.finfo(dtype).smallest_normal) - 20
    picture = figure(PANEL * len(values) + 0.75, title)
    every = picture.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    for axes, (name, own) in zip(every, values.items(), strict=True):
        _panel(plain(axes), name, own, dtype, np.arange(np.floor(bottom), np.ceil(top) + 1))
    every[-1].set_xlabel("magnitude; height: share of the numbers, for each power of two", fontsize=TEXT, loc="left")
    return picture


def _magnitudes(numbers: torch.Tensor) -> NDArray[np.floating]:
    flat = numbers.detach().abs().double().flatten().numpy()
    return flat[flat > 0]


def _panel(axes: Axes, name: str, values: NDArray[np.floating], dtype: torch.dtype, edges: NDArray) -> None:
    counts, _ = np.histogram(np.log2(values).clip(edges[0], edges[-1]), edges)
    heights = counts / max(len(values), 1)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.45 * heights.max()))
    borders = {region: _place(region, edges) for region in regions(dtype)}
    for region, (begin, end) in borders.items():
        inside = (edges[:-1] >= begin) & (edges[:-1] < end)
        axes.bar(edges[:-1][inside], heights[inside], width=0.9, align="edge", color=region.colour, zorder=3)
        axes.axvline(end, color=Colour.LINE, linewidth=0.9, zorder=1)
    _words(axes, borders, shares(values, dtype), (WIDTH - 1) / (edges[-1] - edges[0]))
    axes.set_yticks([])
    axes.spines[["left"]].set_visible(False)
    axes.set_ylabel(name, fontsize=TEXT)
    step = next(step for step in (8 << k for k in count()) if edges[-1] - edges[0] <= step * MOST_TICKS)
    ticks = [edge for edge in edges if edge % step == 0]
    axes.set_xticks(ticks, [f"$2^{{{edge:.0f}}}$" for edge in ticks])


def _place(region: Region, edges: NDArray) -> tuple[float, float]:
    """Where a region begins and ends, in powers of two."""
    begin, end = (np.log2(edge) if edge else -np.inf for edge in (region.begin, region.end))
    return np.clip(begin, edges[0], edges[-1]), np.clip(end, edges[0], edges[-1])


def _words(
    axes: Axes, borders: Mapping[Region, tuple[float, float]], found: Mapping[str, float], inches: float
) -> None:
    """What becomes of how many: each in its region, or all in one line, where a region has no room for words."""
    look = {"colour": Colour.INK, "va": "top", "transform": axes.get_xaxis_transform()}
    if any((end - begin) * inches < NARROW for begin, end in borders.values()):
        line = "     ".join(f"{share:.1%} {name}" for name, share in found.items())
        return write(axes, sum(axes.get_xlim()) / 2, 0.97, line, SMALL, **look)
    for region, (begin, end) in borders.items():
        words = f"{found[region.name]:.1%} {region.name}"
        write(axes, (begin + end) / 2, 0.97, words if end - begin > 8 else words.replace(" ", "\n"), SMALL, **look)

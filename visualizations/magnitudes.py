"""How large numbers are, and what a floating-point format makes of them: nothing, something, itself, or infinity.

A format with few bits for the exponent has an end on either side. Below its smallest normal number it gives digits up
one by one; below half of its smallest number there is nothing left; above its largest everything is infinite.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, figure, plain

PANEL = 1.55  # inches


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
        "become infinite": (float("inf"), Colour.ERROR),
    }
    found, begin = [], 0.0
    for name, (end, colour) in bits.items():
        found.append(Region(name, begin, end, colour))
        begin = end
    return tuple(found)


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
        BadInput: if some panel has no number but zeros.
    """
    values = {name: _magnitudes(numbers) for name, numbers in panels.items()}
    if empty := [name for name, own in values.items() if not len(own)]:
        raise BadInput(f"{empty[0]} has no magnitudes to draw: all its numbers are 0")
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
    for region, share in zip(regions(dtype), shares(values, dtype).values(), strict=True):
        begin, end = (np.clip(np.log2(max(edge, 1e-300)), edges[0], edges[-1]) for edge in (region.begin, region.end))
        inside = (edges[:-1] >= begin) & (edges[:-1] < end)
        axes.bar(edges[:-1][inside], heights[inside], width=0.9, align="edge", color=region.colour, zorder=3)
        axes.axvline(end, color=Colour.LINE, linewidth=0.9, zorder=1)
        words = f"{share:.1%} {region.name}" if end - begin > 8 else f"{share:.1%}\n{region.name.replace(' ', chr(10))}"
        place = {"ha": "center", "va": "top", "fontsize": SMALL, "color": Colour.INK}
        axes.text((begin + end) / 2, 0.97, words, transform=axes.get_xaxis_transform(), **place)
    axes.set_yticks([])
    axes.spines[["left"]].set_visible(False)
    axes.set_ylabel(name, fontsize=TEXT)
    ticks = [edge for edge in edges if edge % 8 == 0]
    axes.set_xticks(ticks, [f"$2^{{{edge:.0f}}}$" for edge in ticks])

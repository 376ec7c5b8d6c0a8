"""What a format makes of numbers: each one's ratio, what arrives to what was sent, by how large it is.

At 1 a number arrives as it was, at 0 it is lost. Integers have steps of one height: small numbers of a block are lost,
and large ones are nearly exact. Floating point is off by a like share of any number, down to where its exponents end.
"""

from collections.abc import Mapping
from math import ceil

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reference.compression.formats import Format
from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, figure, plain

COLUMNS, PANEL = 3, 1.95  # charts side by side; inches of one, upwards
SHOWN = 1500  # numbers that are drawn, at most
LOW, HIGH = -0.12, 2.12  # of ratios: from half of a step up a number may arrive as twice what it was
BETWEEN = 0.27  # a ratio that no rounding to the nearest gives: there is room for words


def draw(x: torch.Tensor, formats: Mapping[str, Format], *, title: str) -> Picture:
    """A chart for each format, each with the same numbers.

    Args:
        x: of any shape, in float32; they are quantised in the order in which they lie. Zeros are not drawn.
        formats: by name.
        title: the finding.

    Raises:
        BadInput: if all numbers are 0, or there is no format.
    """
    if not formats or not x.count_nonzero():
        raise BadInput("there is nothing to draw: give numbers that are not all 0, and a format or more")
    rows = ceil(len(formats) / COLUMNS)
    picture = figure(PANEL * rows + 0.5, title)
    charts = picture.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes, (name, form) in zip(charts.flat, formats.items(), strict=False):
        _ratios(plain(axes), x.flatten(), name, form)
    for axes in charts.flat[len(formats) :]:
        axes.axis("off")
    for row in charts:
        row[0].set_ylabel("arrives / sent", fontsize=TEXT)
    for place in range(min(COLUMNS, len(formats))):
        below = charts[(len(formats) - 1 - place) // COLUMNS, place]
        below.set_xlabel("magnitude, as a power of 2", fontsize=TEXT, loc="left")
        below.tick_params(labelbottom=True)
    return picture


def arrived(x: torch.Tensor, form: Format) -> torch.Tensor:
    """What a format makes of numbers, flat."""
    flat = x.flatten().float()
    return form.decode(form.encode(flat), flat.numel())


def loss_of(x: torch.Tensor, form: Format) -> tuple[float, float]:
    """The length of the error over the length of x, and the share of numbers that became 0 and were not."""
    got, flat = arrived(x, form), x.flatten().float()
    lost = (got == 0) & (flat != 0)
    return float((got - flat).norm() / flat.norm()), float(lost.double().mean())


def _ratios(axes: Axes, x: torch.Tensor, name: str, form: Format) -> None:
    magnitudes, ratios = sample(x, arrived(x, form))
    lost = ratios == 0
    look = {"markersize": 2, "linestyle": "none", "marker": "o", "alpha": 0.55, "zorder": 3}
    axes.plot(magnitudes[~lost], ratios[~lost], color=Colour.FORWARD, **look)
    axes.plot(magnitudes[lost], ratios[lost], color=Colour.ERROR, **look)
    error, share = loss_of(x, form)
    axes.set_title(f"{name}: {8 * form.nbytes(x.numel()) / x.numel():.3g} bits", fontsize=TEXT, loc="left")
    words = f"error {100 * error:.2g} %, lost {100 * share:.2g} %"
    axes.text(0.98, BETWEEN, words, transform=axes.get_yaxis_transform(), fontsize=SMALL, ha="right", color=Colour.INK)
    axes.set_ylim(LOW, HIGH)
    axes.set_yticks((0, 1, 2))


def sample(x: torch.Tensor, got: torch.Tensor) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Magnitudes, as powers of 2, and ratios of some numbers, the same each time; those of zeros are left out."""
    there = torch.nonzero(x).flatten()
    if len(there) > SHOWN:
        there = there[torch.randperm(len(there), generator=torch.Generator().manual_seed(0))[:SHOWN]]
    sent, came = x[there].double(), got[there].double()
    return sent.abs().log2().numpy(), (came / sent).numpy()

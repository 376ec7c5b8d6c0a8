"""Loss over the size of a model, where each curve has one budget of FLOPs: larger models see fewer tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter

from reference.errors import BadInput, require_sizes
from reference.planning.scaling_law import FLOPS, ScalingLaw

from .style import SMALL, TEXT, Colour, Picture, figure, lines, plain

SAMPLES = 300  # points of a curve
REACH = 12.0  # times the best size, up and down
ON_WHITE = {"bbox": {"facecolor": "white", "linewidth": 0, "pad": 0.5}, "zorder": 4}  # words that lines go behind
TIERS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def draw(
    law: ScalingLaw,
    budgets: Sequence[float],
    *,
    models: Mapping[str, tuple[float, float]] | None = None,
    title: str = "",
) -> Picture:
    """A curve for each budget, with its least loss, and a line through these.

    Args:
        law: that says the loss.
        budgets: FLOPs, a curve for each.
        models: parameters and tokens of trainings to be marked, by name.
        title: the finding; by default the best size of the largest budget.

    Raises:
        BadInput: if there is no budget, or one is not above 0.
    """
    require_sizes(budgets=len(budgets))
    if min(budgets) <= 0:
        raise BadInput(f"a budget has FLOPs, above 0, not {min(budgets):g}")
    picture = figure(3.7, title or finding(law, max(budgets)))
    axes = plain(picture.add_subplot())
    best = law.optimum(np.array(budgets))
    least = law.loss(best.parameters, best.tokens)
    through = law.optimum(np.geomspace(min(budgets), max(budgets), SAMPLES))
    losses = law.loss(through.parameters, through.tokens)
    axes.plot(through.parameters, losses, color=Colour.FAINT, linewidth=1, zorder=2)
    for index, (colour, dash, marker) in enumerate(lines(len(budgets))):
        flops, size = budgets[index], best.parameters[index]
        sizes = size * np.geomspace(1 / REACH, REACH, SAMPLES)
        loss = law.loss(sizes, flops / (FLOPS * sizes))
        axes.plot(sizes, loss, color=colour, linestyle=dash, linewidth=1.8, zorder=3, label=f"{_power(flops)} FLOPs")
        axes.plot(size, least[index], marker, color=colour, markersize=7, markeredgecolor="white", zorder=5)
        place = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center", "fontsize": SMALL, **ON_WHITE}
        axes.annotate(_short(size), (size, least[index]), **place)
    for name, (parameters, tokens) in (models or {}).items():
        loss = float(law.loss(parameters, tokens))
        axes.plot(parameters, loss, "*", color=Colour.INK, markersize=10, markeredgecolor="white", zorder=6)
        place = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": SMALL, **ON_WHITE}
        axes.annotate(name, (parameters, loss), **place)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
    room = least.max() - least.min() or 1.0
    axes.set_ylim(least.min() - 0.12 * room - 0.05, least.max() + 0.5 * room)
    axes.set_xlabel("parameters", fontsize=TEXT, loc="left")
    axes.set_ylabel("loss (nats for a token)", fontsize=TEXT)
    look = {"frameon": False, "fontsize": SMALL, "labelcolor": Colour.INK}
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), **look)
    return picture


def finding(law: ScalingLaw, flops: float) -> str:
    """The default title."""
    best = law.optimum(flops)
    size, tokens, each = float(best.parameters), float(best.tokens), float(best.tokens / best.parameters)
    amount = f"{size_text(size)} parameters on {size_text(tokens)} tokens, {each:.0f} for each"
    return f"{_power(flops)} FLOPs are best spent on {amount}"


def size_text(amount: float) -> str:
    """Parameters or tokens for a reader: "40.3 billion"."""
    for size, name in TIERS:
        if amount >= size:
            return f"{amount / size:.3g} {name}"
    return f"{amount:.3g}"


def _short(amount: float) -> str:
    """The same with a letter: "40B"."""
    for size, name in TIERS:
        if amount >= 0.9995 * size:
            return f"{amount / size:.{2 if amount < 99.5 * size else 3}g}{name[0].upper()}"
    return f"{amount:.2g}"


def _power(flops: float) -> str:
    return f"{flops:.3g}".replace("e+", "e")

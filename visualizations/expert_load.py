"""How busy experts are: each of them in each step of a training, and all together on each rank.

`draw` has a strip for each run: a row for each expert, steps from left to right, dark where an expert gets many times
its even share of tokens, white where it gets none. `draw_ranks` has a bar for each rank, of parts that are its experts.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reference.errors import BadInput
from reference.expert_parallel.balancing import StepLoad
from reference.expert_parallel.placement import ExpertPlacement

from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, figure, fits, ink_on, plain, write

SHADES = LinearSegmentedColormap.from_list("load", ["#FFFFFF", "#9CCBEA", Colour.FORWARD, "#0B2545"])
STRIP = 1.15  # inches: the least height of a run's strip
LAST = 20  # steps whose mean a caption says


def draw(runs: Mapping[str, Sequence[StepLoad]], layer: int = 0, *, title: str = "") -> Picture:
    """The load of each expert of one layer, step by step, in each run.

    Args:
        runs: what each step has seen, by the name of the run; with as many experts each.
        layer: which of the layers with experts, counted from 0 on.
        title: the finding; by default the share of the busiest expert at the end.

    Raises:
        BadInput: if there is no step to draw, or runs have different experts.
    """
    shares = {name: _shares(steps, layer) for name, steps in runs.items() if steps}
    if not shares or len({share.shape[0] for share in shares.values()}) > 1:
        raise BadInput("there is nothing to draw: give runs with a step or more, and as many experts each")
    experts = next(iter(shares.values())).shape[0]
    most = max(share.max() for share in shares.values())
    picture = figure(0.5 + len(shares) * (STRIP + 0.35), title or finding(runs, layer))
    heading = {"fontsize": TEXT, "loc": "left"}
    every = picture.subplots(len(shares), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, share) in zip(every, shares.items(), strict=True):
        plain(axes).grid(False)
        image = axes.imshow(share, cmap=SHADES, vmin=0, vmax=most, aspect="auto", interpolation="nearest")
        axes.set_yticks(range(experts), [str(expert) for expert in range(experts)] if experts <= 8 else [""] * experts)
        axes.tick_params(axis="y", length=0)
        axes.set_ylabel("expert", fontsize=TEXT)
        axes.set_title(f"{name}: at the end, the busiest expert of a step gets {_end(share):.1f} shares", **heading)
    every[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    every[-1].set_xlabel("step", fontsize=TEXT, loc="left")
    bar = picture.colorbar(image, ax=list(every), fraction=0.03, pad=0.02)
    bar.set_label("in even shares", fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    bar.locator, bar.formatter = MaxNLocator(5), FuncFormatter(lambda share, _: f"{share:g}")
    bar.update_ticks()
    return picture


def finding(runs: Mapping[str, Sequence[StepLoad]], layer: int = 0) -> str:
    """The default title of `draw`."""
    words = ", ".join(f"{_end(_shares(steps, layer)):.1f} ({name})" for name, steps in runs.items())
    return f"Even shares of tokens that the busiest expert of a step gets at the end: {words}"


def draw_ranks(placements: Mapping[str, ExpertPlacement], *, title: str = "") -> Picture:
    """What each rank has to compute, expert by expert, with experts placed in one way or another.

    Args:
        placements: by name. An expert keeps its colour: that of the rank which has it in the first of them. Where it
            has several slots, each has its part.
        title: the finding; by default what the busiest rank has.

    Raises:
        BadInput: if there is no placement, or nothing to compute.
    """
    busiest = max((max(placement.rank_loads) for placement in placements.values()), default=0.0)
    if not busiest:
        raise BadInput("there is nothing to draw: no rank has an expert with tokens")
    first = next(iter(placements.values()))
    owner = {expert: rank for rank, own in reversed(list(enumerate(first.slots))) for expert in own}
    lane, left, top = 0.25, 0.75, 0.0
    scale = (WIDTH - left - 0.75) / busiest
    picture, axes = canvas(sum(lane * each.ranks + 0.5 for each in placements.values()), title or _busiest(placements))
    for name, placement in placements.items():
        loads = placement.rank_loads
        mean = sum(loads) / len(loads)
        caption = f"{name}: the busiest rank has {placement.imbalance:.2f} times the mean"
        write(axes, left, top + 0.14, caption, TEXT, Colour.INK, ha="left")
        for rank, own in enumerate(placement.slots):
            y, x = top + 0.28 + rank * lane, left
            write(axes, left - 0.1, y + 0.42 * lane, f"rank {rank}", SMALL, Colour.INK, ha="right")
            for expert in own:
                face = colour_of(owner[expert], first.ranks)
                wide = placement.loads[expert] / placement.copies[expert] * scale
                look = {"facecolor": face, "edgecolor": "white", "linewidth": 0.8}
                axes.add_patch(Rectangle((x, y), wide, 0.84 * lane, **look))
                if fits(str(expert), wide, 0.84 * lane):
                    at = x + min(wide / 2, 0.14)  # before the line of the mean
                    write(axes, at, y + 0.42 * lane, str(expert), SMALL, ink_on(face), va="center_baseline")
                x += wide
            write(axes, x + 0.06, y + 0.42 * lane, f"{loads[rank]:,.0f}", SMALL, Colour.INK, ha="left")
        end = top + 0.28 + lane * placement.ranks
        axes.plot([left + mean * scale] * 2, [top + 0.27, end], color=Colour.INK, linewidth=1, linestyle=(0, (3, 2)))
        top = end + 0.22
    write(
        axes, WIDTH - 0.15, top - 0.1, "a number in a bar: the expert; dashed: the mean of all ranks", SMALL, ha="right"
    )
    return picture


def _busiest(placements: Mapping[str, ExpertPlacement]) -> str:
    words = ", ".join(f"{placement.imbalance:.2f} ({name})" for name, placement in placements.items())
    return f"What the busiest rank has to compute, in means of all ranks: {words}"


def _end(share: np.ndarray) -> float:
    """What the busiest expert of a step gets, on average of the last steps."""
    return float(share[:, -LAST:].max(axis=0).mean())


def _shares(steps: Sequence[StepLoad], layer: int) -> np.ndarray:
    """[E, steps]: tokens of each expert, as multiples of an even share."""
    counts = np.stack([step.counts[layer].numpy() for step in steps], axis=1).astype(float)
    return counts / np.maximum(counts.mean(axis=0), 1e-9)

"""Why tensor parallelism stays inside a node: the same block's collectives on fast links and on slow ones.

The products and collectives of a block, their order and their shapes are those of its own code, run on the meta
device (`reference.tensor_parallel.lab.simulate_layer`). Times are modelled: FLOPs at the rate that a GPU reaches, and
messages replayed on a network. Blue, green and dark teal compute; orange is what a rank waits for the network.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from reference.tensor_parallel.lab.simulate_layer import LayerSimulation, Price
from reference.trace.activity import Doing

from . import overlap
from .style import SMALL, TEXT, Colour, Picture, amount_axis, figure, plain, seconds_text

Prices = Mapping[str, Price]
"""What collectives cost, by the name of the network."""


def draw(
    simulations: Sequence[LayerSimulation],
    prices: Prices,
    speed: float,
    *,
    nodes: Mapping[str, int] = {},
    title: str = "",
) -> Picture:
    """Time of a block over t, a panel for each network: computing, and waiting for the network on top of it.

    Args:
        simulations: of one block and one micro-batch on t = 2, 4, 8, 16 ranks, say.
        prices: of collectives, by name: `{"NVLink": rings(Network.of(NVLINK4)), ...}`.
        speed: FLOP/s that a GPU reaches.
        nodes: ranks of a node, for the networks that have nodes, by name; what does not fit into one is shaded.
        title: the finding; by default the share of the time that ranks wait, at the largest t of a node.
    """
    picture = figure(3.4, title or finding(simulations, prices, speed, max(nodes.values(), default=8)))
    panels = picture.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    times = {name: [one.times(price, speed) for one in simulations] for name, price in prices.items()}
    highest = max(sum(pair) for pairs in times.values() for pair in pairs)
    for axes, (name, pairs) in zip(panels, times.items(), strict=True):
        plain(axes).grid(False, axis="x")
        for place, (one, (_, waiting)) in enumerate(zip(simulations, pairs, strict=True)):
            _bar(axes, place, computing(one, speed), waiting)
        axes.set(ylim=(0, 1.14 * highest), xlim=(-0.6, len(pairs) - 0.4))
        axes.set_xticks(range(len(pairs)), [str(one.ranks) for one in simulations])
        axes.tick_params(axis="x", length=0)
        axes.set_title(name, fontsize=TEXT, color=Colour.INK, fontweight="bold", loc="left")
        axes.set_xlabel("t, ranks that share the block", fontsize=SMALL, color=Colour.INK)
        if name in nodes:
            _border(axes, [one.ranks for one in simulations], nodes[name])
    amount_axis(panels[0], "modelled time of a block", lambda seconds: seconds_text(seconds) if seconds else "0")
    faces = {str(doing): overlap.FACES[doing] for doing in COMPUTING}
    faces["waiting for the network, and its share of the time"] = Colour.COMMUNICATION
    marks = [Patch(facecolor=face, label=label) for label, face in faces.items()]
    picture.legend(handles=marks, loc="outside lower right", frameon=False, fontsize=SMALL, ncols=len(marks))
    return picture


COMPUTING = (Doing.FORWARD, Doing.BACKWARD, Doing.WEIGHT_GRADIENT)  # from the bottom of a bar
WAITING = "#9A6500"  # the orange of communication, dark enough to be read


def finding(simulations: Sequence[LayerSimulation], prices: Prices, speed: float, node: int) -> str:
    """The default title."""
    inside = max((one for one in simulations if one.ranks <= node), key=lambda one: one.ranks)
    words = ", ".join(f"{share(inside, price, speed):.0%} on {name}" for name, price in prices.items())
    return f"Modelled from a block's own collectives: of its time {inside.ranks} ranks wait {words}"


def computing(simulation: LayerSimulation, speed: float) -> dict[Doing, float]:
    """Seconds that a rank computes in a block, by what they go into."""
    steps = simulation.steps
    return {doing: sum(step.flops for step in steps if step.spent_on is doing) / speed for doing in COMPUTING}


def share(simulation: LayerSimulation, price: Price, speed: float) -> float:
    """Of the time of a block, the share in which ranks wait for the network."""
    computes, waiting = simulation.times(price, speed)
    return waiting / (computes + waiting)


def draw_step(simulation: LayerSimulation, prices: Prices, speed: float, *, title: str = "") -> Picture:
    """What one rank does when, network by network on one scale: the picture of `visualizations.overlap`.

    Args as for `draw`.
    """
    lanes = {name: simulation.activities(price, speed) for name, price in prices.items()}
    ends = {name: overlap.duration([lane]) for name, lane in lanes.items()}
    said = ", ".join(f"{seconds_text(end)} on {name}" for name, end in ends.items())
    words = title or f"Modelled from the same trace, t = {simulation.ranks}: a block takes {said}"
    return overlap.draw(list(lanes.values()), title=words, names=list(lanes))


def _bar(axes: Axes, place: int, computes: Mapping[Doing, float], waiting: float) -> None:
    total = 0.0
    for doing, seconds in {**computes, Doing.COMMUNICATION: waiting}.items():
        look = {"color": overlap.FACES[doing], "edgecolor": "white", "linewidth": 0.5, "zorder": 2}
        axes.bar(place, seconds, 0.8, total, **look)
        total += seconds
    words = {"ha": "center", "fontsize": SMALL, "textcoords": "offset points", "zorder": 5}
    axes.annotate(seconds_text(total), (place, total), (0, 11), **words)
    axes.annotate(f"{waiting / total:.0%}", (place, total), (0, 2), color=WAITING, **words)


def _border(axes: Axes, ranks: Sequence[int], node: int) -> None:
    """What lies beyond the last t that fits into a node."""
    inside = sum(t <= node for t in ranks)
    if not 0 < inside < len(ranks):
        return
    left, right = inside - 0.5, len(ranks) - 0.4
    axes.axvspan(left, right, color="#F1F1F1", zorder=0)
    words = {"ha": "center", "va": "top", "fontsize": SMALL, "color": Colour.FAINT}
    place = axes.get_xaxis_transform()
    axes.text((left + right) / 2, 0.98, f"more\nthan {node}", transform=place, **words)

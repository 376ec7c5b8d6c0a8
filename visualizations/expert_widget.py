"""Routing of any skew, to play with: what experts and ranks get, what is dropped, and what crosses between nodes.

Sliders over one picture of three charts: tokens of each expert, with the line of its capacity; tokens of each rank; and
bytes between nodes, a row for each choice beside one copy for each node. Tokens are drawn at random: with skew 0 all
experts suit them equally well, and with more of it the first ones better.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reference.errors import BadInput
from reference.expert_parallel.cost import Routes

from . import explorer
from .explorer import Explorer, Menu, Slider
from .rank_colours import colour_of
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain, tint

EXPERTS = (4, 8, 16, 32, 64)
RANKS = (2, 4, 8, 16)
NODES = 2
WIDTH, SIZE = 4096, 2  # of Mixtral; bytes of an element in bf16
NAMED = 8  # of so many experts, at most, there is a number below


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the controls say: one layer, forward."""

    tokens: int = 512  # of each rank
    experts: int = 8
    ranks: int = 4
    top_k: int = 2
    capacity: float = 0.0
    skew: float = 1.0

    def __post_init__(self) -> None:
        if self.experts % self.ranks:
            raise BadInput(f"{self.experts} experts do not divide among {self.ranks} ranks")
        if self.top_k > self.experts:
            raise BadInput(f"a token goes to {self.top_k} experts, and there are {self.experts}")

    @cached_property
    def wanted(self) -> Routes:
        """Choices of all tokens, the same each time: the k best of scores with Gumbel noise, so drawn one by one."""
        random = np.random.default_rng(0)
        suits = -self.skew * np.linspace(0, 3, self.experts)
        scores = suits + random.gumbel(size=(self.ranks, self.tokens, self.experts))
        chosen = np.argsort(-scores, axis=-1)[..., : self.top_k]
        return Routes(tuple(torch.from_numpy(of_rank.copy()) for of_rank in chosen), self.experts, NODES)

    @property
    def room(self) -> float:
        """Tokens that an expert takes, of all ranks together: infinitely many without a capacity."""
        share = self.ranks * self.tokens * self.top_k / self.experts
        return np.ceil(self.capacity * share) if self.capacity else np.inf

    @cached_property
    def routes(self) -> Routes:
        """The same, without what does not fit: all first choices come before the others, in the order of tokens."""
        if not self.capacity:
            return self.wanted
        chosen = torch.stack(self.wanted.chosen)  # [n, T, k]
        in_turn = chosen.flatten(0, 1).T.flatten()
        is_it = in_turn[:, None] == torch.arange(self.experts)
        kept = (is_it.cumsum(0) * is_it).sum(1) <= self.room
        kept = kept.view(self.top_k, -1).T.view_as(chosen)
        return Routes(tuple(chosen.where(kept, -1)), self.experts, NODES)

    @property
    def dropped(self) -> float:
        """The share of choices for which there was no room."""
        wanted = int(self.wanted.counts().sum())
        return 1 - int(self.routes.counts().sum()) / wanted

    @property
    def busy(self) -> float:
        """The share of time in which ranks compute, if all wait for the busiest."""
        loads = self.routes.rows().sum(0).double()
        return float(loads.mean() / loads.max())

    def crossing(self) -> tuple[int, int]:
        """Bytes to other nodes, forward and one way: with a row for each choice, and with one copy to a node."""
        node = torch.arange(self.ranks) // (self.ranks // NODES)
        rows, copies = self.routes.rows(), self.routes.copies()
        apart = node[:, None] != node[None, :]
        elsewhere = node[:, None] != torch.arange(NODES)[None, :]
        return int((rows * apart).sum()) * WIDTH * SIZE, int((copies * elsewhere).sum()) * WIDTH * SIZE

    def draw(self) -> Picture:
        """Experts, ranks and bytes."""
        title = f"{self.dropped:.0%} of choices dropped; ranks compute {self.busy:.0%} of the time"
        picture = figure(3.0, f"{title}, since all wait for the busiest")
        experts, ranks, nodes = picture.subplots(1, 3, width_ratios=(1.7, 1.0, 0.8))
        self._experts(experts)
        self._ranks(ranks)
        self._nodes(nodes)
        return picture

    def _experts(self, axes: Axes) -> None:
        wanted, kept = (routes.counts().sum(0).numpy() for routes in (self.wanted, self.routes))
        faces = [colour_of(expert // self.wanted.here, self.ranks) for expert in range(self.experts)]
        edge = {"edgecolor": "#999999", "linewidth": 0.4, "zorder": 3, "width": 0.85}
        _columns(axes)
        axes.bar(range(self.experts), kept, color=faces, **edge)
        if self.capacity:
            look = edge | {"edgecolor": Colour.ERROR, "linewidth": 0.8}
            full = [expert for expert in range(self.experts) if wanted[expert] > kept[expert]]
            dropped = (wanted - kept)[full]
            axes.bar(full, dropped, bottom=kept[full], color="white", hatch="////", label="dropped", **look)
            axes.axhline(self.room, color=Colour.INK, linewidth=1.2, zorder=4, label="capacity")
        even = float(wanted.mean())
        axes.axhline(even, color=Colour.FAINT, linewidth=1.2, linestyle=(0, (3, 2)), zorder=4, label="even share")
        axes.set_xticks(range(0, self.experts, max(1, self.experts // NAMED)))
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("experts, in colours of their ranks", fontsize=TEXT, loc="left")
        axes.set_title("tokens of each expert", fontsize=TEXT, loc="left")
        axes.set_ylim(0, 1.3 * max(wanted.max(), 1))
        axes.legend(frameon=False, fontsize=SMALL, ncols=3, loc="upper right", handlelength=1.4, columnspacing=0.9)

    def _ranks(self, axes: Axes) -> None:
        loads = self.routes.rows().sum(0).numpy()
        faces = [colour_of(rank, self.ranks) for rank in range(self.ranks)]
        _columns(axes)
        axes.bar(range(self.ranks), loads, color=faces, edgecolor="#999999", linewidth=0.4, zorder=3, width=0.8)
        axes.axhline(loads.mean(), color=Colour.FAINT, linewidth=1.2, linestyle=(0, (3, 2)), zorder=4)
        axes.set_xticks(range(self.ranks), [str(r) if self.ranks <= 8 else "" for r in range(self.ranks)])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("ranks", fontsize=TEXT, loc="left")
        axes.set_title("tokens of each rank", fontsize=TEXT, loc="left")
        axes.set_ylim(0, 1.15 * max(loads.max(), 1))

    def _nodes(self, axes: Axes) -> None:
        sizes = self.crossing()
        _columns(axes)
        faces = [Colour.COMMUNICATION, tint(Colour.COMMUNICATION, 0.5)]
        axes.bar(range(2), sizes, color=faces, edgecolor="#999999", linewidth=0.4, zorder=3, width=0.7)
        for place, size in enumerate(sizes):
            words = bytes_text(size)
            axes.text(place, size, words, fontsize=SMALL, ha="center", va="bottom", color=Colour.INK)
        axes.set_xticks(range(2), ["a row for\na choice", "a copy to\na node"], fontsize=SMALL)
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(0, 1.15 * max(*sizes, 1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
        axes.set_title(f"between {NODES} nodes", fontsize=TEXT, loc="left")


def _columns(axes: Axes) -> None:
    plain(axes).grid(False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:,.0f}"))


CONTROLS: Mapping[str, Menu | Slider] = MappingProxyType(
    {
        "tokens": Slider("tokens", 64, 2048, 64),
        "experts": Menu("experts", EXPERTS),
        "ranks": Menu("ranks", RANKS),
        "top_k": Slider("top k", 1, 8, 1),
        "capacity": Slider("capacity", 0.0, 3.0, 0.25),
        "skew": Slider("skew", 0.0, 2.0, 0.1),
    }
)
"""By field of `Choice`: the layer on the left, its router on the right. Capacity 0 is none."""


def explore(**choice: Any) -> Explorer:
    """Experts, ranks and bytes; begin with any fields of `Choice`: `explore(experts=16, skew=0.5)`."""
    return Explorer(Choice(**choice), CONTROLS)

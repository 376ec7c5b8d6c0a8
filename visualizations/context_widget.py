"""Context parallelism of any shape, to play with: how even the work is, what ranks send, and what they hold.

Menus over one picture of three charts: busy time of a ring under each layout, bytes that a rank sends by each way, and
bytes that it holds, on any number of ranks: at the peak of forward and for backward. What is chosen is dark in the
first two, and a large dot in the third.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reference.choices import ContextLayout, ContextMethod
from reference.context_parallel import cost
from reference.context_parallel.cost import AttentionShape
from reference.context_parallel.layouts import Layout, layout
from reference.context_parallel.tokens import in_order
from reference.errors import BadInput

from . import explorer
from .explorer import Explorer, Menu
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain, tint

SEQUENCES = (8_192, 32_768, 131_072, 1_048_576)
RANKS = (1, 2, 4, 8, 16)
HEADS = (8, 16, 32, 64, 128)
KV_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
HEAD_DIM, SIZE, SUM_SIZE = 128, 2, 4  # of Llama 3; bytes of an element in bf16, and of a sum
LAYOUTS = (ContextLayout.CONTIGUOUS, ContextLayout.ZIGZAG, ContextLayout.STRIPED)
FINE = 64  # tokens of a rank when work is counted: more change its shares by less than one percent


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the menus say: one attention layer, forward and backward."""

    sequence: int = 131_072
    ranks: int = 8
    heads: int = 32
    kv_heads: int = 8
    method: ContextMethod = ContextMethod.RING
    layout: ContextLayout = ContextLayout.ZIGZAG

    @property
    def idle(self) -> Collection[str]:
        """The layout, where each rank has all tokens of some heads."""
        return ("layout",) if self.method is ContextMethod.ULYSSES else ()

    def shape(self, ranks: int | None = None) -> AttentionShape:
        """The layer on so many ranks, or on those chosen. Raises BadInput if heads do not divide."""
        n = self.ranks if ranks is None else ranks
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.kv_heads} heads of keys do not serve {self.heads} of queries equally")
        return AttentionShape(1, self.heads, self.kv_heads, self.sequence // n, HEAD_DIM, n, 2 if n > 1 else 1)

    def sent(self, method: ContextMethod) -> int:
        """Bytes that a rank sends, forward and backward. Raises BadInput if the way does not exist here."""
        return cost.sent(method, self._divided(method, self.ranks)).bytes(SIZE, SUM_SIZE)

    def kept(self, ranks: int) -> int:
        """Bytes that wait for backward on a rank."""
        return SIZE * cost.kept(self.shape(ranks), self.method)

    def peak(self, ranks: int) -> int:
        """The most bytes of a rank in forward, with q, k and v. Raises BadInput if the way does not exist there."""
        shape = self._divided(self.method, ranks)
        return (shape.out + shape.block) * SIZE + cost.peak(self.method, shape, SIZE, SUM_SIZE)

    def _divided(self, method: ContextMethod, ranks: int) -> AttentionShape:
        shape = self.shape(ranks)
        if method is ContextMethod.ULYSSES and shape.heads % shape.ranks:
            raise BadInput(f"Ulysses shares out heads, and {shape.heads} do not divide among {shape.ranks} ranks")
        return shape

    @property
    def busy(self) -> float:
        """The share of time in which ranks compute."""
        return 1.0 if self.method is ContextMethod.ULYSSES else busy(self.method, self.layout, self.ranks)

    def draw(self) -> Picture:
        """Balance, bytes and memory."""
        sent, kept = self.sent(self.method), self.kept(self.ranks)
        title = f"{self.method}, {self.layout}" if not self.idle else f"{self.method}"
        title += f": {self.busy:.0%} busy; a rank sends {bytes_text(sent)} and keeps {bytes_text(kept)} for each layer"
        picture = figure(2.9, title)
        balance, traffic, memory = picture.subplots(1, 3, width_ratios=(1, 1.45, 0.95))
        self._balance(balance)
        self._traffic(traffic)
        self._memory(memory)
        return picture

    def _balance(self, axes: Axes) -> None:
        shares = [1.0 if self.idle else busy(self.method, kind, self.ranks) for kind in LAYOUTS]
        chosen = [not self.idle and kind is self.layout for kind in LAYOUTS]
        _columns(axes, [str(kind) for kind in LAYOUTS], shares, chosen, [f"{share:.0%}" for share in shares])
        axes.set_ylim(0, 1.15)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        axes.set_title("time in which ranks compute", fontsize=TEXT, loc="left")

    def _traffic(self, axes: Axes) -> None:
        names, sizes = [], []
        for method in ContextMethod:
            try:
                sizes.append(self.sent(method))
                names.append(method)
            except BadInput:
                continue
        words = [bytes_text(size) for size in sizes]
        _columns(axes, [str(name) for name in names], sizes, [name is self.method for name in names], words)
        axes.set_ylim(0, 1.15 * max(*sizes, 1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
        axes.set_title("bytes that a rank sends", fontsize=TEXT, loc="left")

    def _memory(self, axes: Axes) -> None:
        lines = {"at its peak": (self.peak, Colour.FORWARD), "for backward": (self.kept, Colour.INK)}
        for number, (name, (bytes_on, colour)) in enumerate(lines.items()):
            sizes = {place: bytes_on(n) for place, n in enumerate(RANKS) if self._exists_on(n)}
            axes.plot(*zip(*sizes.items(), strict=True), color=colour, linewidth=1.4, marker="o", markersize=4)
            if self.ranks in RANKS:
                axes.plot([RANKS.index(self.ranks)], [bytes_on(self.ranks)], color=colour, marker="o", markersize=8)
            words, at = f"{name}: {bytes_text(bytes_on(self.ranks))}", 0.97 - 0.1 * number
            axes.text(1, at, words, fontsize=SMALL, color=colour, ha="right", va="top", transform=axes.transAxes)
        plain(axes)
        axes.set_xticks(range(len(RANKS)), map(str, RANKS), fontsize=SMALL)
        axes.set_ylim(0, 1.15 * self.peak(1))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
        axes.set_xlabel("ranks", fontsize=TEXT, loc="left")
        axes.set_title("bytes of a rank, in forward", fontsize=TEXT, loc="left")

    def _exists_on(self, ranks: int) -> bool:
        return self.method is not ContextMethod.ULYSSES or self.heads % ranks == 0


@lru_cache(maxsize=256)
def busy(method: ContextMethod, kind: ContextLayout, ranks: int) -> float:
    """The share of time in which ranks compute: in a ring all wait in each step, else at the end alone."""
    held = layout(kind, FINE * ranks, ranks)
    if method is ContextMethod.USP and ranks > 1:
        families = [sum(held.tokens[first : first + 2], ()) for first in range(0, ranks, 2)]
        held = Layout(held.sequence, tuple(in_order(family)[0] for family in families))
    return cost.efficiency(held) if method is ContextMethod.ALL_GATHER else cost.ring_efficiency(held)


def _columns(
    axes: Axes, names: Sequence[str], heights: Sequence[float], chosen: Sequence[bool], words: Sequence[str]
) -> None:
    """Columns with their heights written above; those chosen are dark."""
    faces = [Colour.FORWARD if this else tint(Colour.FORWARD, 0.65) for this in chosen]
    plain(axes).grid(False, axis="x")
    axes.bar(range(len(names)), heights, color=faces, width=0.7, zorder=3)
    for place, (height, said) in enumerate(zip(heights, words, strict=True)):
        axes.text(place, height, said, fontsize=SMALL, ha="center", va="bottom", color=Colour.INK)
    axes.set_xticks(range(len(names)), names, fontsize=SMALL, rotation=20)
    axes.yaxis.set_major_locator(MaxNLocator(5))


CONTROLS: Mapping[str, Menu] = MappingProxyType(
    {
        "sequence": Menu("tokens", SEQUENCES, "{:,}".format),
        "ranks": Menu("ranks", RANKS),
        "heads": Menu("heads", HEADS),
        "kv_heads": Menu("of keys", KV_HEADS),
        "method": Menu("way", tuple(ContextMethod)),
        "layout": Menu("layout", LAYOUTS),
    }
)
"""By field of `Choice`: the layer on the left, how it is shared on the right."""


def explore(**choice: Any) -> Explorer:
    """Balance, bytes and memory; begin with any fields of `Choice`: `explore(ranks=16, heads=64)`."""
    return Explorer(Choice(**choice), CONTROLS)

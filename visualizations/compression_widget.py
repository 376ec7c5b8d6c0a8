"""Few bits to play with: a sum of gradients over ranks, what its error is, what is sent, and how long that takes.

Three charts: what arrives of each number of one rank; the error of the sum over ranks, where each rank's numbers are
rounded once, and where a ring rounds what it has added up at each step; and bytes and seconds of a gradient of 100
million numbers, beside 32 and 16 bits. Numbers are drawn at random, from normal distributions of several widths, as the
rows of a gradient have them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from reference.compression.elements import E2M1, E4M3, E5M2, INT4, INT8
from reference.compression.formats import Format, Scaled, ScaleKind
from reference.trace import network as links

from . import explorer, few_bits
from .explorer import Explorer, Menu, Slider, named
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain, seconds_text, tint

NUMBERS, GRADIENT = 512, 10**8  # of a rank that are rounded here; of a gradient that is sent
WIDTHS = (0, -6)  # powers of 2, of rows of a gradient
ELEMENTS: Mapping[str, tuple] = MappingProxyType(
    {
        "int8": (INT8, ScaleKind.FLOAT32),
        "int4": (INT4, ScaleKind.FLOAT32),
        "e4m3": (E4M3, ScaleKind.FLOAT32),
        "e5m2": (E5M2, ScaleKind.FLOAT32),
        "mxfp8": (E4M3, ScaleKind.E8M0),
        "nvfp4": (E2M1, ScaleKind.E4M3),
    }
)
"""Numbers and scales by the names of formats."""
LINKS: Mapping[str, links.Link] = MappingProxyType(
    {
        "100 Mb/s": links.Link("100 Mb/s", 1e-4, 12.5e6),
        "1 Gb/s": links.Link("1 Gb/s", 1e-4, 125e6),
        "100 Gb/s Ethernet": links.ETHERNET_100G,
        "InfiniBand NDR": links.INFINIBAND_NDR,
        "NVLink 4": links.NVLINK4,
    }
)
ROUNDING = ("to the nearest", "by chance")


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the controls say."""

    numbers: str = "int4"
    block: int = 256
    rounding: str = ROUNDING[0]
    ranks: int = 8
    link: str = "1 Gb/s"

    def __post_init__(self) -> None:
        named(ELEMENTS, self.numbers, "format")
        named(LINKS, self.link, "link")

    @property
    def idle(self) -> Collection[str]:
        """Every control changes something."""
        return ()

    @cached_property
    def form(self) -> Format:
        """The format."""
        element, scale = ELEMENTS[self.numbers]
        return Scaled(element, self.block, scale)

    @cached_property
    def gradients(self) -> torch.Tensor:
        """What ranks bring: [ranks, numbers]. They share half of it, as gradients of parts of a batch do."""
        generator = torch.Generator().manual_seed(0)
        own = torch.randn(self.ranks, NUMBERS, generator=generator) + torch.randn(NUMBERS, generator=generator)
        return own * torch.logspace(*WIDTHS, NUMBERS // 8, base=2.0).repeat_interleave(8)

    def rounded(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        """What arrives of x."""
        by_chance = seed if self.rounding == ROUNDING[1] else None
        return self.form.decode(self.form.encode(x, by_chance), x.shape[-1])

    def errors(self) -> tuple[float, float]:
        """Of the sum, over its length: where each rank's numbers are rounded once, and in a ring."""
        exact, own, others = self.gradients.sum(0), self.gradients[0], self.gradients[1:]
        once = own + self.rounded(others, self.ranks).sum(0)
        around = self.gradients[-1]
        for seed, x in enumerate(self.gradients[:-1]):
            around = self.rounded(around, seed) + x
        return tuple(float((found - exact).norm() / exact.norm()) for found in (once, around))

    def sent(self) -> dict[str, float]:
        """Bytes that a rank sends of a gradient in an all-reduce: reduce-scatter, and all-gather."""
        shard = -(-GRADIENT // self.ranks)
        each = {"32 bits": 4 * shard, "16 bits": 2 * shard, self.numbers: self.form.nbytes(shard)}
        return {name: 2 * (self.ranks - 1) * size for name, size in each.items()}

    def seconds(self) -> dict[str, float]:
        """Of the same, on a link of this rank's own: latency and bytes; rounding takes no time here."""
        link = LINKS[self.link]
        return {name: 2 * (self.ranks - 1) * link.alpha + size / link.beta for name, size in self.sent().items()}

    def draw(self) -> Picture:
        """Numbers, sums, and what they cost."""
        once, around = self.errors()
        gain = self.seconds()["16 bits"] / self.seconds()[self.numbers]
        title = f"{self.numbers}: an error of {100 * once:.2g} % of the sum, {gain:.2g} times as fast as 16 bits"
        picture = figure(3.0, f"{title} on {self.link}")
        numbers, sums, cost = picture.subplots(1, 3, width_ratios=(1.25, 0.75, 1.3))
        self._numbers(plain(numbers))
        self._sums(plain(sums), once, around)
        self._cost(plain(cost))
        return picture

    def _numbers(self, axes: Axes) -> None:
        x = self.gradients[0]
        magnitudes, ratios = few_bits.sample(x, self.rounded(x, 0))
        lost = ratios == 0
        look = {"markersize": 2, "linestyle": "none", "marker": "o", "alpha": 0.55, "zorder": 3}
        axes.plot(magnitudes[~lost], ratios[~lost], color=Colour.FORWARD, **look)
        axes.plot(magnitudes[lost], ratios[lost], color=Colour.ERROR, **look)
        axes.set(xlim=(-16, 3), ylim=(few_bits.LOW, few_bits.HIGH), yticks=(0, 1, 2))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("magnitude, as a power of 2", fontsize=TEXT, loc="left")
        axes.set_title("arrives / sent", fontsize=TEXT, loc="left")

    def _sums(self, axes: Axes, once: float, around: float) -> None:
        axes.grid(False, axis="x")
        axes.bar((0, 1), (once, around), color=(Colour.FORWARD, Colour.ERROR), width=0.65, zorder=3)
        for place, error in enumerate((once, around)):
            axes.text(place, error, f"{100 * error:.2g} %", fontsize=SMALL, ha="center", va="bottom", color=Colour.INK)
        axes.set_xticks((0, 1), ("rounded\nonce", "in a\nring"), fontsize=SMALL)
        axes.tick_params(axis="x", length=0)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 * error:.3g} %"))
        axes.set_ylim(0, 1.2 * max(once, around, 1e-6))
        axes.set_title(f"error, sum of {self.ranks}", fontsize=TEXT, loc="left")

    def _cost(self, axes: Axes) -> None:
        sent, seconds = self.sent(), self.seconds()
        axes.grid(False)
        faces = (Colour.IDLE, Colour.LINE, tint(Colour.COMMUNICATION, 0.2))
        axes.barh(range(3), list(seconds.values()), color=faces, height=0.6, zorder=3)
        longest = max(seconds.values())
        for place, name in enumerate(sent):
            words = f"{seconds_text(seconds[name])}\n{bytes_text(sent[name])}"
            axes.text(seconds[name] + 0.03 * longest, place, words, fontsize=SMALL, va="center", color=Colour.INK)
        axes.set_yticks(range(3), list(sent), fontsize=SMALL)
        axes.tick_params(axis="y", length=0)
        axes.set(xlim=(0, 1.5 * longest), ylim=(2.5, -0.5))
        axes.xaxis.set_major_locator(NullLocator())
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.set_title(f"a rank's all-reduce of {GRADIENT // 10**6} million", fontsize=TEXT, loc="left")


CONTROLS: Mapping[str, Menu | Slider] = MappingProxyType(
    {
        "numbers": Menu("format", tuple(ELEMENTS)),
        "block": Menu("block", (16, 32, 64, 128, 256, 512)),
        "rounding": Menu("rounded", ROUNDING),
        "ranks": Slider("ranks", 2, 32, 1),
        "link": Menu("link", tuple(LINKS)),
    }
)
"""By field of `Choice`."""


def explore(**choice: Any) -> Explorer:
    """Errors, bytes and seconds; begin with any fields of `Choice`: `explore(numbers="int8", ranks=16)`."""
    return Explorer(Choice(**choice), CONTROLS)

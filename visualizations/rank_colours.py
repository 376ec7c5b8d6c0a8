"""The colours of ranks that share something out: one cool ramp, which a printed number goes with.

What is the same on every rank is grey, as if it had no owner. Orange stays for communication.
"""

from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from .style import Colour

SAME = "#D9D9D9"  # what every rank has, or does, alike
_RAMP = LinearSegmentedColormap.from_list("ranks", ["#DDF0FA", "#6FBCE8", "#3F6FB5", "#2F2F73"])


def colour_of(rank: int, ranks: int) -> str:
    """The colour of one of `ranks` ranks, light for the first and dark for the last: told apart in greyscale, too."""
    return to_hex(_RAMP(rank / max(ranks - 1, 1) if ranks > 2 else 0.2 + 0.5 * rank))


def ink_on(face: str) -> str:
    """The colour of words that can be read on this one."""
    red, green, blue = to_rgb(face)
    return Colour.INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"

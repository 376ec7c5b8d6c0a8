"""The colours of ranks that share something out: one cool ramp, which a printed number goes with.

What is the same on every rank is grey, as if it had no owner. Orange stays for communication.
"""

from matplotlib.colors import LinearSegmentedColormap, to_hex

SAME = "#D9D9D9"  # what every rank has, or does, alike
_RAMP = LinearSegmentedColormap.from_list("ranks", ["#DDF0FA", "#6FBCE8", "#3F6FB5", "#2F2F73"])


def colour_of(rank: int, ranks: int) -> str:
    """The colour of one of `ranks` ranks, light for the first and dark for the last: distinct in greyscale, too."""
    return to_hex(_RAMP(rank / max(ranks - 1, 1) if ranks > 2 else 0.2 + 0.5 * rank))

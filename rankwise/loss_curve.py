"""The picture of what a run learned."""

from collections.abc import Sequence

from reference.report import StepReport
from visualizations.style import LINES, TEXT, Colour, Picture, figure, plain


def draw(steps: Sequence[StepReport], held_out: float, entropy: float) -> Picture:
    """Loss over steps as dots, and what byte frequencies alone would give as a line.

    Args:
        steps: of one run.
        held_out: loss on the held-out text at the end, in nats per byte.
        entropy: of a byte on its own, in nats.
    """
    last = steps[-1].step
    picture = figure(
        3.6, f"After {last} steps an unseen byte costs {held_out:.2f} nats; byte frequencies alone give {entropy:.2f}"
    )
    axes = plain(picture.add_subplot())
    axes.plot(
        [s.step for s in steps], [s.loss for s in steps], ".", markersize=4, color=LINES[0][0], label="each batch"
    )
    axes.plot(
        last, held_out, "D", color=Colour.INK, markersize=7, label=f"held-out text: {held_out:.2f}", clip_on=False
    )
    axes.axhline(entropy, color=Colour.FAINT, linewidth=1.5)
    axes.annotate(
        f"entropy of the byte frequencies: {entropy:.2f}", (last, entropy), (0, 4), textcoords="offset points",
        ha="right", color=Colour.FAINT, fontsize=TEXT,
    )  # fmt: skip
    axes.set(xlabel="step", ylabel="loss (nats per byte)", xlim=(0, last), ylim=(0, None))
    axes.legend(frameon=False, fontsize=TEXT)
    return picture

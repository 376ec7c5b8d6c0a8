"""The picture of what a run learned."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from reference.report import Step

MEASURED, BOUND, HELD_OUT = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito 2008: safe for colour-blind readers


def draw(steps: Sequence[Step], held_out: float, entropy: float) -> Figure:
    """Loss over steps, with what letter frequencies alone would give.

    Args:
        steps: of one run.
        held_out: loss on the held-out text at the end, in nats per byte.
        entropy: of a byte on its own, in nats.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([s.step for s in steps], [s.loss for s in steps], ".", ms=4, color=MEASURED, label="each step's batch")
    axes.plot(steps[-1].step, held_out, "D", ms=7, color=HELD_OUT, label=f"held-out text: {held_out:.2f}")
    axes.axhline(entropy, color=BOUND, linewidth=1.5)
    axes.annotate(
        f"byte frequencies alone: {entropy:.2f}", (steps[-1].step, entropy), (0, 4), textcoords="offset points",
        ha="right", color=BOUND,
    )  # fmt: skip
    axes.set(
        title=f"After {steps[-1].step} steps an unseen byte costs {held_out:.2f} nats instead of {entropy:.2f}",
        xlabel="step", ylabel="loss (nats per byte)", ylim=(0, None), xlim=(0, steps[-1].step * 1.02),
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure

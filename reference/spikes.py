"""What a run says of spikes of its loss: what is one, and what to do about it. See `reference.resilience.spikes`."""

from dataclasses import dataclass

from reference.errors import BadInput, require_sizes
from reference.fields import option

OF_SPIKES = ("spike_deviations",)  # without it the others mean nothing


@dataclass(frozen=True)
class SpikePolicy:
    """What is a spike, and what to do about it.

    Attributes:
        window: of so many last losses the median is taken; before there are so many, nothing is a spike.
        deviations: a loss is a spike where it is above the median by so many deviations, robustly estimated.
        least: and by so much at least, in nats: late in training deviations are small.
        before: go back to a snapshot at least so many steps before the spike.
        beyond: leave out so many batches after that of the spike, besides those since the snapshot.
        every: steps between snapshots.
        most: so many times in one run.

    Raises:
        BadInput: for numbers that make no sense.
    """

    window: int = 50
    deviations: float = 8.0
    least: float = 0.1
    before: int = 100
    beyond: int = 200
    every: int = 50
    most: int = 10

    def __post_init__(self) -> None:
        require_sizes(window=self.window, every=self.every)
        for name in ("least", "before", "beyond", "most"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} is 0 or more, not {getattr(self, name)}")
        if not self.deviations > 0:
            raise BadInput(f"deviations ({self.deviations}) are above 0")


@dataclass(frozen=True, kw_only=True)
class SpikeOptions:
    """Whether a run goes back where its loss spikes. None stands for what `SpikePolicy` has.

    Raises:
        BadInput: for numbers that make no sense, or without a number of deviations.
    """

    spike_deviations: float | None = option(
        None,
        "A loss that is so many deviations above the median of the last ones, such as 8, is a spike: training goes "
        "back to before it, and leaves out the batches that it came with. Lesson 17.",
    )
    spike_window: int | None = option(
        None, "With --spike-deviations: losses of which the median is taken; 50 by default.", within=OF_SPIKES
    )
    spike_least: float | None = option(
        None, "With --spike-deviations: nats above the median that a spike has at least; 0.1 by default.",
        within=OF_SPIKES,
    )  # fmt: skip
    spike_before: int | None = option(
        None, "With --spike-deviations: steps before the spike to go back to, at least; 100 by default.",
        within=OF_SPIKES,
    )  # fmt: skip
    spike_beyond: int | None = option(
        None,
        "With --spike-deviations: batches to leave out after that of the spike, besides those before it; 200 by "
        "default.",
        within=OF_SPIKES,
    )
    spike_every: int | None = option(
        None, "With --spike-deviations: steps from one snapshot in memory to the next; 50 by default.", within=OF_SPIKES
    )
    spike_most: int | None = option(
        None, "With --spike-deviations: spikes in one run, before it gives up; 10 by default.", within=OF_SPIKES
    )

    def __post_init__(self) -> None:
        if self._said and self.spike_deviations is None:
            raise BadInput(f"--spike-{next(iter(self._said))} needs --spike-deviations: without it no loss is a spike")
        SpikePolicy(**self._said)  # refuses numbers that make no sense

    @property
    def spikes(self) -> SpikePolicy | None:
        """What is a spike, and what to do about it; None where no loss is one."""
        return SpikePolicy(**self._said) if self._said else None

    @property
    def _said(self) -> dict[str, float]:
        """The fields of a policy that were given."""
        found = {name: getattr(self, f"spike_{name}") for name in vars(SpikePolicy())}
        return {name: value for name, value in found.items() if value is not None}

"""How much memory was taken by what, moment after moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np


class MemoryKind(StrEnum):
    """What memory is taken for, in the order in which it is stacked everywhere."""

    PARAMETERS = "parameters"  # that the model computes with
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"  # master copies and moments
    ACTIVATIONS = "activations"  # what forward leaves for backward, and what it needs meanwhile
    BUFFERS = "buffers"  # everything else: gradients of activations, scratch, what is being sent


KINDS = tuple(MemoryKind)


@dataclass(frozen=True)
class Mark:
    """From this moment on a phase of the step runs."""

    label: str
    moment: int


@dataclass(frozen=True, eq=False)
class History:
    """Bytes in use by kind over time: of a real run, as a `Gauge` has seen it, or of a plan.

    Within a moment memory is taken first and given back after: each row is the most that was in use in its moment.
    """

    usage: np.ndarray  # [moments, kinds] of int64, bytes; kinds in the order of `KINDS`
    marks: tuple[Mark, ...] = ()
    moment: str = "operations"  # what the moments are
    units: Mapping[str, np.ndarray] = field(default_factory=dict)  # by name of what was followed: [moments], bytes

    @property
    def total(self) -> np.ndarray:
        """[moments]: bytes of all kinds together."""
        return self.usage.sum(axis=1)

    @property
    def peak(self) -> int:
        """The most bytes in use at one moment."""
        return int(self.total.max())

    @property
    def peak_moment(self) -> int:
        """The first moment at which so many were."""
        return int(self.total.argmax())

    @property
    def at_peak(self) -> dict[MemoryKind, int]:
        """What they were used for."""
        return self._row(self.peak_moment)

    def peak_of(self, kind: MemoryKind) -> int:
        """The most bytes in use for one kind, whenever that was."""
        return int(self.usage[:, KINDS.index(kind)].max())

    def at(self, label: str, nth: int = 0) -> dict[MemoryKind, int]:
        """Bytes by kind at the moment when the phase began; its nth run where it ran several times, -1 for the last."""
        return self._row(self._marked(label)[nth])

    def during(self, label: str, nth: int = 0) -> "History":
        """The part from a mark to the next one."""
        begin = self._marked(label)[nth]
        later = [mark.moment for mark in self.marks if mark.moment > begin]
        end = min(later, default=len(self.usage))
        units = {name: values[begin:end] for name, values in self.units.items()}
        return History(self.usage[begin:end], (Mark(label, 0),), self.moment, units)

    def _row(self, moment: int) -> dict[MemoryKind, int]:
        return dict(zip(KINDS, self.usage[moment].tolist(), strict=True))

    def _marked(self, label: str) -> list[int]:
        moments = [mark.moment for mark in self.marks if mark.label == label]
        if not moments:
            raise KeyError(f"no mark is called {label!r}; there are {', '.join(mark.label for mark in self.marks)}")
        return moments

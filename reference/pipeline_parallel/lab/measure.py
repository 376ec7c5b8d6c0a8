"""When the ranks of a pipeline did what: a step that has happened, in the same form as one on paper.

The clock is the same for all processes of a machine, so ranks on one machine need not agree on anything.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reference.pipeline_parallel.schedule import Action, Schedule
from reference.pipeline_parallel.simulate import ActionSpan, Simulation


class Timings:
    """What one rank computes, and when: `Pipeline(..., context=timings.of)`.

    What a rank waits for is not among it. On a GPU, this is when the processor has said what is to be computed.
    """

    def __init__(self) -> None:
        self.spans: list[ActionSpan] = []  # in seconds of a clock that has begun some time ago

    @contextmanager
    def of(self, action: Action) -> Iterator[None]:
        """Note when what is inside begins and ends."""
        begin = time.monotonic()
        yield
        self.spans.append(ActionSpan(action, begin, time.monotonic()))


def measured(schedule: Schedule, lines: Sequence[Sequence[ActionSpan]]) -> Simulation:
    """A step as ranks of one machine have noted it.

    Args:
        schedule: that they followed.
        lines: `Timings.spans` of each rank, of one step.

    Returns:
        Spans in seconds from the first of them.
    """
    zero = min(line[0].begin for line in lines if line)
    spans = [[ActionSpan(action, begin - zero, end - zero) for action, begin, end in line] for line in lines]
    return Simulation.of_spans(schedule, spans, "s")

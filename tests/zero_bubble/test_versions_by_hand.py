"""Written out for one stage, the three that never flush see what the policies for whole schedules say."""

import pytest
import torch
from torch import Tensor

from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.zero_bubble import pipemare as remedies
from reference.zero_bubble import versions
from reference.zero_bubble.answers.versions import pipemare, two_versions, weight_stashing

Line = list[tuple[str, int]]
RANKS, RUN = 4, 24  # micro-batches


def line_of(schedule: Schedule, rank: int) -> Line:
    """What a rank does, as the functions by hand take it."""
    return [(action.kind.value, action.micro_batch) for action in schedule.lines[rank]]


class Counting:
    """A stage whose weight is the number of its updates: every micro-batch's gradient is its part of -1."""

    def __init__(self, rank: int, parts: int = 1) -> None:
        self.rank, self.parts = rank, parts
        self.seen: dict[Action, float] = {}

    def forward(self, micro_batch: int, weight: Tensor) -> None:
        self.seen[Action(Kind.FORWARD, self.rank, micro_batch)] = weight.item()

    def backward(self, micro_batch: int, weight: Tensor) -> Tensor:
        self.seen[Action(Kind.BACKWARD, self.rank, micro_batch)] = weight.item()
        return torch.tensor(-1.0, dtype=torch.float64) / self.parts


def of_rank(seen: versions.Seen, schedule: Schedule, rank: int) -> dict[Action, int]:
    """What one rank sees."""
    return {action: seen[action] for action in schedule.lines[rank]}


@pytest.mark.parametrize("rank", range(RANKS))
def test_stashing_sees_the_same_versions_as_its_policy(rank: int) -> None:
    schedule, stage = one_f_one_b(RANKS, RUN), Counting(rank)
    start = torch.zeros((), dtype=torch.float64)
    end = weight_stashing(line_of(schedule, rank), start, stage.forward, stage.backward, rate=1.0)
    assert stage.seen == of_rank(versions.stashed(schedule, 1), schedule, rank)
    assert end == RUN
    assert start == 0  # left as it is


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("batch", [4, 8])  # halves and quarters of -1 add up exactly
def test_two_versions_are_those_of_its_policy(rank: int, batch: int) -> None:
    schedule, stage = one_f_one_b(RANKS, RUN), Counting(rank, batch)
    start = torch.zeros((), dtype=torch.float64)
    end = two_versions(line_of(schedule, rank), start, batch, stage.forward, stage.backward, rate=1.0)
    assert stage.seen == of_rank(versions.two_buffers(schedule, batch), schedule, rank)
    assert end == RUN // batch


@pytest.mark.parametrize("rank", range(RANKS - 1))  # the last one has no delay
def test_pipemare_applies_both_remedies(rank: int) -> None:
    """Forward sees the newest version, backward the guess; against the remedies one by one."""
    schedule, tau, rate, updates, remembered = one_f_one_b(RANKS, RUN), RANKS - 1 - rank, 0.1, 10, 0.135
    seen: list[tuple[str, Tensor]] = []

    def backward(micro_batch: int, weight: Tensor) -> Tensor:
        seen.append(("B", weight))
        return weight.sin() + micro_batch / RUN

    line = line_of(schedule, rank)
    start = torch.linspace(-1, 1, 5, dtype=torch.float64)
    end = pipemare(line, start, lambda k, w: seen.append(("F", w)), backward, tau, rate, updates, remembered)

    weight, velocity, expected, done = start, torch.zeros_like(start), [], 0
    for kind, micro_batch in line:
        if kind == "F":
            expected.append(("F", weight))
            continue
        guess = remedies.corrected(weight, velocity, tau)
        expected.append(("B", guess))
        after = weight - remedies.rescheduled(rate, tau, done, updates) * (guess.sin() + micro_batch / RUN)
        velocity = remedies.velocity_after(velocity, weight, after, remedies.decay(tau, remembered))
        weight, done = after, done + 1
    assert [kind for kind, _ in seen] == [kind for kind, _ in expected]
    for (_, got), (_, wanted) in zip(seen, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)  # the same sums in another order
    torch.testing.assert_close(end, weight, rtol=1e-9, atol=1e-9)

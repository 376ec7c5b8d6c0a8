"""Every algorithm with any number of ranks, any length, any root: what the oracle says, at the price of its formula."""

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import barrier, cost
from reference.trace import Trace

from . import conformance as c
from .conftest import MOST, in_group, members

LENGTHS = (0, 5, 37)


def sweep(group: dist.ProcessGroup) -> tuple[list[str], list[int]]:
    """What is wrong with the values of this rank, and its ticks before each case and after the last, a barrier."""
    recorder, wrong, ticks = dist.group.WORLD.recorder, [], []
    for case in c.lengths(LENGTHS, dist.get_world_size(group)):
        ticks.append(recorder.tick)
        wrong.append(c.mismatch(case, group))
    ticks.append(recorder.tick)
    barrier.dissemination(group)
    return [*filter(None, wrong)], [*ticks, recorder.tick]


def cut(trace: Trace, ticks: list[list[int]]) -> list[Trace]:
    """The trace of each case. `ticks` are those of each rank; those who take no part have none."""

    def between(rank: int, number: int) -> tuple:
        begin, end = ticks[rank][number : number + 2] or (0, 0)
        return tuple(event for event in trace.events[rank] if begin <= event.posted < end)

    cases = max(map(len, ticks)) - 1
    return [Trace(MOST, tuple(between(rank, number) for rank in range(MOST))) for number in range(cases)]


def formula(case: c.Case, n: int) -> tuple[int, list[int]]:
    """(steps, bytes of each group rank) that `cost` says."""
    size = torch.empty(0, dtype=case.dtype).element_size()
    if case.collective == "uneven":
        return n - 1, [cost.uneven_bytes(rank, c.splits(case, rank, n), 2 * size) for rank in range(n)]
    numel = case.length * (n if case.collective in ("scatter", "gather", "all_to_all") else 1)
    costs = cost.of(case.algorithm)
    return costs.steps(n, numel, size), [costs.bytes((rank - case.root) % n, n, numel, size) for rank in range(n)]


@pytest.mark.turns(4)
@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_values_are_right_and_formulas_equal_the_trace(ranks: Cluster, n: int) -> None:
    """Steps and bytes of every rank, exactly; of the algorithms that `select` chooses, the values."""
    found, trace = ranks.trace(in_group, n, sweep)
    assert [rank for rank, own in enumerate(found) if own] == members(n)
    assert [wrong for wrong, _ in filter(None, found) if wrong] == []
    *traces, of_barrier = cut(trace, [own[1] if own else [] for own in found])
    for case, part in zip(c.lengths(LENGTHS, n), traces, strict=True):
        assert not part.unmatched
        if not case.algorithm.__module__.endswith("select"):
            assert (part.steps, [part.bytes_sent[rank] for rank in members(n)]) == formula(case, n), str(case)
    costs = cost.of(barrier.dissemination)
    assert of_barrier.steps == costs.steps(n, 0, 1)
    assert of_barrier.bytes_sent == [costs.bytes(0, n, 0, 1) if rank in members(n) else 0 for rank in range(MOST)]

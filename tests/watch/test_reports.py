"""How many messages the watch takes: one for a call that waits, two for one that is waited for later."""

import pytest
import torch
import torch.distributed as dist

from reference.cluster.call import Call
from reference.cluster.wire import Kind

CALLS = 10


def sums() -> None:
    for _ in range(CALLS):
        dist.all_reduce(torch.ones(3))


def ping() -> None:
    for _ in range(CALLS):
        if dist.get_rank() == 0:
            dist.send(torch.ones(3), dst=1)
        else:
            dist.recv(torch.empty(3), src=0)


def later() -> None:
    for _ in range(CALLS):
        dist.all_reduce(torch.ones(3), async_op=True).wait()


def by_the_group_itself() -> None:
    for _ in range(CALLS):
        dist.group.WORLD.allreduce([torch.ones(3)]).wait()


@pytest.mark.parametrize(("program", "each"), [(sums, 1), (ping, 1), (later, 2), (by_the_group_itself, 2)])
def test_reports_of_a_rank(clusters, monkeypatch, program, each):
    heard = []
    take = Call.take

    def counted(self, report):
        heard.extend([report.rank] * (getattr(report, "kind", None) is Kind.EVENT))
        take(self, report)

    monkeypatch.setattr(Call, "take", counted)
    _, trace = clusters(2, watch=True).trace(program)
    assert [heard.count(rank) for rank in range(2)] == [CALLS * each + 1] * 2  # the last says what is complete
    assert all(event.completed is not None for events in trace.events for event in events)

"""Which snapshots a rank keeps: so many that one step is whole, whenever a rank dies. What they cost to send."""

from collections.abc import Callable

import pytest
import torch.distributed as dist

from reference.cluster import Cluster
from reference.parallelize import DataParallelism, Plan
from reference.resilience.copies import _TAG, KEPT, MemoryCopies, Snapshot, bytes_sent
from reference.resilience.placement import grouped

from .runs import CONFIG, training_of

Clusters = Callable[..., Cluster]


class Group:
    """A group of two ranks, as far as `begin` asks it."""

    def rank(self) -> int:
        return 0


def snapshot(step: int, layout: int) -> Snapshot:
    return Snapshot(step, layout, {}, {}, {})


@pytest.fixture
def copies() -> MemoryCopies:
    held = MemoryCopies()
    held.begin(Group(), ((0, 1), (1, 0)), layout=1)
    return held


def steps(copies: MemoryCopies) -> list[tuple[int, int]]:
    return sorted({at for at, _ in copies._held})


def test_the_last_steps_are_kept(copies: MemoryCopies) -> None:
    for step in range(6):
        copies._keep(0, snapshot(step, 1))
    assert steps(copies) == [(3, 1), (4, 1), (5, 1)]
    assert len(steps(copies)) == KEPT


def test_the_old_layout_is_kept_until_all_have_the_new(copies: MemoryCopies) -> None:
    for step in (3, 4, 5):
        copies._keep(0, snapshot(step, 1))
    copies.begin(Group(), ((0, 1), (1, 0)), layout=2)
    copies._keep(0, snapshot(4, 2))
    assert steps(copies) == [(3, 1), (4, 1), (4, 2), (5, 1)]
    copies._keep(0, snapshot(5, 2))
    assert steps(copies) == [(4, 2), (5, 2)]


def test_a_step_that_was_never_whole_does_not_push_out_one_that_is(copies: MemoryCopies) -> None:
    """Step 5 of layout 1 was under way when a rank died; layout 2 goes through step 5 once more."""
    for step in (3, 4, 5):
        copies._keep(0, snapshot(step, 1))
    copies.begin(Group(), ((0, 1), (1, 0)), layout=2)
    for step in (4, 5, 6):
        copies._keep(0, snapshot(step, 2))
    assert steps(copies) == [(4, 2), (5, 2), (6, 2)]


def copy_after_a_step(form: DataParallelism, copies: int) -> tuple[int, int]:
    """What a rank should send, and the bytes of its state."""
    training, held = training_of(Plan(form)), MemoryCopies()
    training.backward(0)
    training.update(0)
    held.begin(dist.group.WORLD, grouped(dist.get_world_size(), copies), layout=1)
    held.take(training, 1)
    held.settle()
    mine = Snapshot.of(training, 1, 1)
    return bytes_sent(mine, copies), mine.nbytes


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("form", [DataParallelism.DDP, DataParallelism.FSDP])
def test_bytes_are_those_of_the_formula(clusters: Clusters, form: DataParallelism, copies: int) -> None:
    """A weight and two moments in 4 bytes each, of all parameters; description and two lengths besides."""
    expected, trace = clusters(3).trace(copy_after_a_step, form, copies)
    sent = [0, 0, 0]
    for message in trace.messages:
        if _TAG <= message.send.tag < _TAG + 3:
            sent[message.src] += message.bytes
    assert sent == [every for every, _ in expected]
    whole = 12 * CONFIG.model.parameters
    states = [state for _, state in expected]
    assert states == [whole] * 3 if form is DataParallelism.DDP else sum(states) == whole
    besides = [every - (copies - 1) * state for every, state in expected]
    assert all(16 * (copies - 1) < each < 20_000 * (copies - 1) for each in besides)

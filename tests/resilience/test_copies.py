"""Which snapshots a rank keeps: so many that one step is whole, whenever a rank dies."""

import pytest

from reference.resilience.copies import KEPT, MemoryCopies, Snapshot


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

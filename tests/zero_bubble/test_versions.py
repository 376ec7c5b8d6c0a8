"""Which weights are seen: by the papers' formulas, for every micro-batch of every stage."""

import pytest

from reference.errors import BadInput
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.methods import FLUSHING, METHODS, PIPEDREAM, TWO_BUFFERED, Method
from reference.zero_bubble.orders import zb_h1
from reference.zero_bubble.versions import delay, joined, kept, newest, stashed, two_buffers, vertical_sync

from .delayed import Papers

SIZES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (3, 5), (4, 1), (4, 3), (4, 4), (5, 3), (8, 1), (8, 7), (8, 16)]
UPDATES = 14


def fits(method: Method, p: int, m: int) -> bool:
    return method is not TWO_BUFFERED or m >= p - 1


CASES = [
    pytest.param(method, p, m, id=f"{method.name}, p={p}, m={m}")
    for method in METHODS
    for p, m in SIZES
    if fits(method, p, m)
]


@pytest.mark.parametrize(("method", "p", "m"), CASES)
def test_every_action_sees_the_version_of_the_paper(method: Method, p: int, m: int) -> None:
    schedule, papers = method.order(p, m, UPDATES), Papers(method, p, m)
    expected = {
        Action(kind, s, k): version(s, k)
        for kind, version in ((Kind.FORWARD, papers.forward), (Kind.BACKWARD, papers.backward))
        for s in range(p)
        for k in range(m * UPDATES)
    }
    assert method.seen(schedule, m) == expected


@pytest.mark.parametrize(("method", "p", "m"), CASES)
def test_delays_and_copies_are_those_of_the_table(method: Method, p: int, m: int) -> None:
    schedule = method.order(p, m, UPDATES)
    seen = method.seen(schedule, m)
    versions = kept(schedule, m, seen)
    for s in range(p):
        late = [delay(seen, kind, s, UPDATES - 1, m) for kind in (Kind.FORWARD, Kind.BACKWARD)]
        assert late == pytest.approx([method.forward_delay(p, m, s), method.backward_delay(p, m, s)])
        most = max(len(found) for action, found in versions.items() if action.stage == s)
        assert most == method.versions(p, m, s)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_an_order_that_computes_a_step(method: Method) -> None:
    for p in (1, 2, 4):
        assert validate(method.order(p, 4, 5)).room <= 1


def test_a_flush_costs_the_bubble_in_every_step() -> None:
    assert FLUSHING.order(4, 2, 3) == joined([one_f_one_b(4, 2)] * 3)
    assert PIPEDREAM.order(4, 2, 3) == one_f_one_b(4, 6)


def test_an_action_keeps_its_own_version_and_the_newest() -> None:
    schedule = one_f_one_b(4, 20)
    for policy in (newest, stashed, vertical_sync):
        seen = policy(schedule, 1)
        for action, versions in kept(schedule, 1, seen).items():
            assert {seen[action], newest(schedule, 1)[action]} <= set(versions)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_vertical_sync_makes_every_stage_as_late_as_the_first(p: int) -> None:
    schedule = one_f_one_b(p, 3 * p)
    seen = vertical_sync(schedule, 1)
    assert seen == {action: max(0, action.micro_batch - (p - 1)) for action in seen}
    assert max(map(len, kept(schedule, 1, seen).values())) == p


@pytest.mark.parametrize("p", [3, 4, 8])
def test_two_buffers_need_large_batches(p: int) -> None:
    too_small = p - 2
    with pytest.raises(BadInput, match=f"two are enough from {p - 1} micro-batches on"):
        two_buffers(one_f_one_b(p, 8 * too_small), too_small)


def test_an_order_that_splits_backward_is_refused() -> None:
    with pytest.raises(BadInput, match=r"is half of a backward"):
        newest(zb_h1(2, 4), 1)
